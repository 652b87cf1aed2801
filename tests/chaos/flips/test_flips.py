"""A sample of the table of damaged small files, and a verdict that sees what the table is for."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import trio

from .cluster import COMPACTED, ONE, STRAY, THREE, Template, make_template
from .plan import FlipPlan, carry_out, try_one
from .round import FlipRound, Outcome
from .table import DAMAGED, Fault, faults, small_files

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return trio.run(make_template, tmp_path_factory.mktemp("flips") / "template", "killed")


def test_a_sample_of_the_table(template: Template, tmp_path: Path) -> None:
    flips = carry_out(FlipPlan(seed=1, sample=12), [template], tmp_path)
    assert [f"{each.fault}: {each.broken}" for each in flips.outcomes if each.broken] == []
    assert flips.passed and len(flips.outcomes) == 12 and flips.of > 10_000
    assert any(each.named for each in flips.outcomes)


def fault(template: Template, path: str) -> Fault:
    """A byte in the middle of a file is another."""
    node = f"node-{DAMAGED}"
    (found,) = (template.root / node).glob(path)
    return Fault(template.ending, f"{node}/{found.relative_to(template.root / node)}", "flip", 40, 1)


@pytest.mark.parametrize("path", [f"{THREE}-0/partition.metadata", f"{ONE}-0/partition.metadata"])
def test_processes(template: Template, tmp_path: Path, path: str) -> None:
    outcome = try_one(template, fault(template, path), tmp_path, processes=True)
    assert outcome.broken == [] and path in outcome.named
    assert outcome.withheld == ([f"{ONE}-0"] if path.startswith(ONE) else [])


def test_each_kind_of_file_is_in_the_table(template: Template) -> None:
    table = faults(template.root, template.ending, seed=1)
    flipped = {Path(each.path).name.lstrip("0123456789") for each in table if each.kind == "flip"}
    assert flipped == {
        *(".index", ".timeindex", ".snapshot", "leader-epoch-checkpoint", "partition.metadata", "stray.json"),
        *("replication-offset-checkpoint", "recovery-point-offset-checkpoint", "log-start-offset-checkpoint"),
        *("cleaner-offset-checkpoint", ".partitions-created", "insync.proof", "meta.properties"),
        *("meta.db", "meta.db-leases"),
    }
    for path in {each.path for each in table if not each.of_store}:
        flips = [each.at for each in table if each.path == path and each.kind == "flip"]
        assert flips == [*range((template.root / path).stat().st_size)]


def test_a_file_that_a_kill_left_half_written_is_not_in_the_table(tmp_path: Path) -> None:
    folder = tmp_path / f"node-{DAMAGED}"
    folder.mkdir()
    for name in ("insync.proof", "insync.proof.tmp", ".partitions-created.tmp"):
        (folder / name).write_bytes(b"0")
    assert [Path(each).name for each in small_files(tmp_path)] == ["insync.proof", "meta.db-leases"]


# the verdict


@attrs.frozen
class Harm(Fault):
    """Damage that is no fault of the table's: records are gone from every disk, or a place is."""

    places: tuple[str, ...] = ()

    def apply(self, root: Path) -> None:
        for pattern in self.places:
            found = [*root.glob(pattern)]
            assert found, pattern
            for path in found:
                path.unlink()


def harmed(template: Template, tmp_path: Path, *places: str) -> Outcome:
    harm = Harm(template.ending, f"node-{DAMAGED}/meta.properties", "flip", places=places)
    return trio.run(FlipRound(template, harm, tmp_path / "cluster").carry_out)


def test_records_that_are_on_no_disk_are_lost(template: Template, tmp_path: Path) -> None:
    outcome = harmed(template, tmp_path, f"node-*/{ONE}-0/*.log", "node-*/*-offset-checkpoint")
    assert any(each.startswith(f"{ONE}-0") for each in outcome.lost), outcome


def test_keys_that_are_gone_are_lost(template: Template, tmp_path: Path) -> None:
    checkpoints = "node-*/*-offset-checkpoint"
    outcome = harmed(template, tmp_path, f"node-*/{COMPACTED}-0/*.log", checkpoints)
    assert any(each.startswith(f"{COMPACTED}-0") for each in [*outcome.lost, *outcome.harmed]), outcome


def test_a_stray_log_that_is_gone_is_lost(template: Template, tmp_path: Path) -> None:
    outcome = harmed(template, tmp_path, f"node-*/{STRAY}-0.*-stray/*.log")
    assert any("stray log" in each for each in outcome.lost), outcome


def test_damage_that_nobody_names_is_told(template: Template, tmp_path: Path) -> None:
    """Nothing is damaged, so that nobody can name it."""
    assert harmed(template, tmp_path).broken == ["not named"]
