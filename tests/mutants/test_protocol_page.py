"""docs/protocol.md says of each rule where it lives and which planted error shows that it is checked: so it is."""

from __future__ import annotations

import re
from pathlib import Path

from .catalogue import load
from .hunt import CHECKED
from .impossible import IMPOSSIBLE
from .untaken import reasons

ROOT = Path(__file__).parents[2]
_CORE = ROOT / "replication" / "core"
_OTHERS = {"node": ROOT / "replication", "storage": ROOT}
"""The rooms beside the core that the page names, and the folder where each lies."""
PAGE = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
GROUPS = (ROOT / "docs" / "groups.md").read_text(encoding="utf-8")
_PLANTED = re.compile(r"\b(?:[GT]?Z|K)\d+[a-z]?\b")


def rows(first: str, page: str = PAGE) -> list[list[str]]:
    """The cells of the table whose heading begins with `first`."""
    table = page.split(f"| {first} |", 1)[1].split("\n\n", 1)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def _source(module: str) -> str:
    room = module.partition("/")[0]
    found = [_OTHERS[room] / f"{module}.py"] if room in _OTHERS else list(_CORE.rglob(f"{module}.py"))
    assert found, module
    return "\n".join(file.read_text("utf-8") for file in found)


def test_every_rule_names_a_place_that_exists() -> None:
    assert len(rows("rule")) > 25
    for rule, where, *_ in rows("rule"):
        places = re.findall(r"`([\w./]+)`", where)
        assert places, rule
        for place in places:
            module, _, name = place.partition(".")
            source = _source(module)
            assert not name or re.search(rf"(def|class) {name}\b", source), f"{place} ({rule})"


def test_every_rule_names_invariants_that_are_checked_and_proofs_that_exist() -> None:
    tests = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    for rule, _, _, needed, proofs in rows("rule"):
        invariants = re.findall(r"\b[SL]\d+b?\b", needed)
        assert invariants, rule
        assert set(invariants) <= set(CHECKED), rule
        planted = _PLANTED.findall(proofs)
        files = re.findall(r"`(test_\w+\.py)`", proofs)
        assert planted or files, rule
        assert set(planted) <= load().keys(), rule
        assert set(files) <= tests, rule


def test_every_planted_error_shows_that_some_rule_is_checked() -> None:
    cells = [row[4] for row in rows("rule")] + [row[2] for row in rows("invariant", GROUPS)]
    shown = {name for cell in cells for name in _PLANTED.findall(cell)}
    assert load().keys() - shown == set(), "planted, and no rule of the page names it"
    assert shown - load().keys() == set(), "named by the page, and not planted"


def test_every_branch_that_need_not_be_taken_is_of_a_module_and_has_a_reason() -> None:
    """Whether its line is still there, `python -m tests.mutants.coverage` tells: modules change every day."""
    listed = reasons()
    assert listed
    for (module, branch), why in listed.items():
        assert (ROOT / "replication" / "core" / module).exists(), module
        assert len(why) > 15, branch


def test_every_invariant_is_explained() -> None:
    explained: set[str] = set()
    for names, *_ in rows("invariant") + rows("invariant", GROUPS):
        ends = re.fullmatch(r"([SL])(\d+) to [SL](\d+)", names)
        if ends:
            explained |= {f"{ends[1]}{number}" for number in range(int(ends[2]), int(ends[3]) + 1)}
        else:
            explained |= set(re.findall(r"(?:[SLT]|GL?)\d+b?", names))
    assert explained == set(CHECKED)


def test_no_known_error_is_left_out_of_the_page_and_the_catalogue() -> None:
    known = {re.sub(r"[a-z]$", "", name) for name in load()} | IMPOSSIBLE.keys()
    assert {f"Z{number}" for number in range(1, 57)} <= known
