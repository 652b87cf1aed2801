"""`python -m tests.mutants.coverage`: which branches of the core does the simulator alone never take?"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from coverage import Coverage

from .untaken import PAGE, reasons

CORE = Path(__file__).parents[2] / "replication" / "core"
LEAST = 95.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.coverage", description=__doc__)
    parser.add_argument("--seeds", default="0:200", help="seeds to run (default 0:200)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    chosen = parser.parse_args()
    first, end = map(int, chosen.seeds.split(":"))
    figures = measure(first, end)
    print(json.dumps(figures) if chosen.json else _text(figures))
    return 1 if figures["percent_of_branches"] < LEAST or figures["unexplained"] else 0


def measure(first: int, end: int) -> dict[str, Any]:
    """Run the seeds with every line of the core watched, from its import on."""
    loaded = [name for name in sys.modules if name.startswith("insync.replication.core")]
    assert not loaded, f"{loaded[0]} was imported before anything was measured"
    watched = Coverage(branch=True, data_file=None, config_file=False, include=["*/replication/core/*"])
    watched.start()
    from insync.replication.simulation import run

    broken = [seed for seed in range(first, end) if run(seed).violation is not None]
    watched.stop()
    branches = taken = 0
    missed: dict[str, list[str]] = {}
    unexplained: list[str] = []
    known = reasons()
    for file in sorted(CORE.rglob("*.py")):
        measured = _file(watched, file)
        if measured is None:
            missed[file.name] = ["never imported"]
            continue
        branches += measured[0]
        taken += measured[1]
        if measured[2]:
            missed[file.name] = [f"{line}: {text} -> {target}" for line, text, target in measured[2]]
            unexplained += [
                f"{file.name}: {text}" for _, text, _ in measured[2] if (file.name, text) not in known
            ]
    return {
        "seeds": end - first,
        "broken": broken,
        "branches": branches,
        "taken": taken,
        "percent_of_branches": round(100 * taken / branches, 2),
        "missed": missed,
        "unexplained": unexplained,
    }


def _file(watched: Coverage, file: Path) -> tuple[int, int, list[tuple[int, str, str]]] | None:
    """Branches, those taken, and those that are not (line, its text, where to) of one module."""
    names = [name for name in watched.get_data().measured_files() if Path(name).resolve() == file.resolve()]
    if not names:
        return None
    analysis = watched._analyze(names[0])
    numbers = analysis.numbers
    lines = file.read_text(encoding="utf-8").splitlines()
    found = [
        (line, lines[line - 1].strip(), "the end" if target < 0 else str(target))
        for line, targets in sorted(analysis.missing_branch_arcs().items())
        for target in targets
    ]
    return numbers.n_branches, numbers.n_branches - numbers.n_missing_branches, found


def _text(figures: dict[str, Any]) -> str:
    lines = [f"{file}:{branch}" for file, branches in figures["missed"].items() for branch in branches]
    lines.append(
        f"{figures['taken']} of {figures['branches']} branches of the core taken in {figures['seeds']} seeds: "
        f"{figures['percent_of_branches']} %; without a reason in {PAGE.name}: {figures['unexplained'] or 'none'}"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
