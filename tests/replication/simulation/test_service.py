"""A user's service under faults: the worked example of docs/testing-your-service.md, and machines that go wrong."""

from __future__ import annotations

import importlib.util
import random
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from insync.replication.simulation import (
    Command,
    Settings,
    SimulationError,
    minimise_service,
    run_service,
)
from insync.replication.simulation.service import Client
from insync.replication.simulation.settings import FAULTS

DOCS = Path(__file__).parents[3] / "docs"
SEEDS = 30


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("seats", DOCS / "examples" / "seats.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


seats = load()


def test_the_right_service_keeps_its_promise() -> None:
    booked = 0
    for seed in range(8):
        done = run_service(seats.Booking(), seed)
        assert done.result.violation is None, (seed, done.result.violation)
        booked += sum(op.outcome is not None and op.outcome.kind == "ok" for op in done.history.operations)
    assert booked > 100


@pytest.mark.slow
def test_the_mistake_is_found_made_short_and_replayed() -> None:
    service = seats.HastyBooking()
    results = (run_service(service, seed).result for seed in range(SEEDS))
    found = next(result for result in results if result.violation is not None)
    assert found.violation is not None
    assert found.violation.invariant == "ONE SEAT EACH"
    short = minimise_service(service, found, attempts=25)
    again = run_service(service, short.seed, short.settings, short.script)
    assert again.result.digest == short.digest
    assert str(again.result.violation) == str(short.violation)
    assert len(short.script.mishaps) + len(short.script.schedule) < 20


def test_without_faults_the_mistake_does_not_show() -> None:
    calm = Settings(faults=(), moves=0.0, reassignments=0.0, topics=seats.Booking.topics)
    assert run_service(seats.HastyBooking(), 1, calm).result.violation is None


def test_a_machine_that_gives_away_its_own_state_as_a_snapshot_is_found() -> None:
    class Careless(seats.SeatMap):  # type: ignore[name-defined, misc]
        def apply(self, offset: int, value: str) -> None:
            self.taken[f"{offset} {len(self.taken)}"] = value

        def snapshot(self) -> object:
            return self.taken

        def restore(self, snapshot: object) -> None:
            self.taken = snapshot

    class Service(seats.Booking):  # type: ignore[name-defined, misc]
        def machine(self, partition: object) -> Careless:
            return Careless()

    violations = (run_service(Service(), seed).result.violation for seed in range(24))
    assert any(violation is not None and violation.invariant == "SERVICE" for violation in violations)


def test_an_unknown_topic_is_named() -> None:
    class Service(seats.Booking):  # type: ignore[name-defined, misc]
        def client(self, number: int, dice: random.Random) -> Client:
            yield Command(topic="nowhere", value="x")

    with pytest.raises(SimulationError, match="nowhere-0, which is not among the service's topics"):
        run_service(Service(), 1)


def test_the_page_shows_the_example_as_it_is() -> None:
    page = (DOCS / "testing-your-service.md").read_text(encoding="utf-8")
    code = (DOCS / "examples" / "seats.py").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    shown = [block for block in blocks if "class " in block]
    assert shown
    for block in shown:
        assert block.strip() in code


def test_the_page_has_every_fault() -> None:
    page = (DOCS / "testing-your-service.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([A-Z]{2})` \|", page, re.MULTILINE)) == set(FAULTS)


def test_the_page_runs_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "seats", seats)
    page = (DOCS / "testing-your-service.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    found, replayed = (block for block in blocks if "HastyBooking" in block)
    names: dict[str, Any] = {}
    # Shorter than as it is: a shortened run is tested above.
    exec(found.replace("(HastyBooking(), result)", "(HastyBooking(), result, attempts=5)"), names)
    assert "ONE SEAT EACH" in capsys.readouterr().out
    assert (tmp_path / "failure.json").exists()
    exec(replayed, names)
    assert names["replay"].seed == names["seed"]
