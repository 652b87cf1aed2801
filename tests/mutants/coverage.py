"""`python -m tests.mutants.coverage`: which branches of the core do the simulators alone never take?

`insync simulate` runs without a profile, and with each. For the rooms of coordinators and their clients only the
profiles run (`--rooms client,coordination,groups,kafka,transactions`). No unit test does.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from coverage import Coverage

from .untaken import PAGE, reasons

CORE = Path(__file__).parents[2] / "replication" / "core"
ROOMS = ("broker", "control", "partition", "recovery")
PROFILES = ("groups", "transactions")
"""They run a quarter of the seeds: there is more in each."""
COORDINATION = {"client", "coordination", "groups", "kafka", "transactions"}
"""The rooms that these play; alone they are measured without `insync simulate`."""
SLICE = 10
"""Seeds that a process plays at a time."""
SUM = "coverage"
"""The file with what all processes have seen; theirs have their process ids at the end."""
_watched: Coverage | None = None
"""In a worker: what it has seen of the core."""
LEAST = 85.0
"""Percent of the branches, without those of modules that are left out whole, each for a reason."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.coverage", description=__doc__)
    parser.add_argument("--seeds", default="0:200", help="seeds to run (default 0:200)")
    parser.add_argument(
        "--rooms", default=",".join(ROOMS), help=f"folders of the core (default {','.join(ROOMS)})"
    )
    parser.add_argument("--jobs", type=int, default=0, help="processes (default: one for each core)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    chosen = parser.parse_args()
    first, end = map(int, chosen.seeds.split(":"))
    figures = measure(first, end, chosen.rooms.split(","), chosen.jobs or os.cpu_count() or 1)
    print(json.dumps(figures) if chosen.json else _text(figures))
    wrong = figures["unexplained"] or figures["stale"]
    return 1 if figures["percent_of_branches"] < LEAST or wrong else 0


def measure(first: int, end: int, rooms: Sequence[str], jobs: int) -> dict[str, Any]:
    """Run the seeds, in processes of their own."""
    broken: list[str] = []
    with TemporaryDirectory(prefix="insync-coverage-") as folder:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, context, _watch, (folder,)) as pool:
            for found in pool.map(_play, *zip(*_slices(first, end, rooms), strict=True)):
                broken += found
        watched = _coverage(str(Path(folder) / SUM))
        watched.combine([folder])
        return _judged(watched, end - first, rooms, broken)


def _slices(first: int, end: int, rooms: Sequence[str]) -> Iterable[tuple[str, int, int]]:
    """The slices to play: of each the profile, the first seed, and the one after the last."""
    few = first + (end - first + 3) // 4
    plans = [(profile, few) for profile in PROFILES]
    if not set(rooms) <= COORDINATION:
        plans.append(("", end))
    for profile, last in plans:
        for seed in range(first, last, SLICE):
            yield profile, seed, min(seed + SLICE, last)


def _coverage(file: str) -> Coverage:
    return Coverage(branch=True, data_file=file, config_file=False, include=["*/replication/core/*"])


def _watch(folder: str) -> None:
    """In a worker: watch every line of the core, from its import on."""
    global _watched
    loaded = [name for name in sys.modules if name.startswith("insync.replication.core")]
    assert not loaded, f"{loaded[0]} was imported before anything was measured"
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
    _watched = _coverage(str(Path(folder) / f"{SUM}.{os.getpid()}"))
    _watched.start()


def _play(profile: str, first: int, end: int) -> list[str]:
    """In a worker: the seeds at which a promise was broken."""
    assert _watched is not None
    # Imported here: what is imported earlier is not measured.
    simulation = import_module("insync.replication.simulation")
    swarm, run = simulation.Settings.swarm, simulation.run
    results = (run(seed, swarm(seed, profile=profile)) for seed in range(first, end))
    broken = [f"{profile} {each.seed}".strip() for each in results if each.violation is not None]
    # A worker ends without a word, and does not know which slice is its last.
    _watched.save()
    return broken


def _judged(watched: Coverage, seeds: int, rooms: Sequence[str], broken: Sequence[str]) -> dict[str, Any]:
    """What was taken, and which of what was not has no reason."""
    by_room: dict[str, dict[str, int]] = {}
    missed: dict[str, list[str]] = {}
    left_out: list[str] = []
    unexplained: list[str] = []
    known = reasons()
    for room in rooms:
        branches = taken = 0
        for file in sorted((CORE / room).rglob("*.py")):
            module = str(file.relative_to(CORE))
            measured = _file(watched, file)
            if (module, "") in known:
                left_out.append(module)
                continue
            if measured is None:
                if "def " in file.read_text(encoding="utf-8"):
                    unexplained.append(f"{module}: never imported")
                continue
            branches += measured[0]
            taken += measured[1]
            if measured[2]:
                missed[module] = [f"{line}: {text} -> {target}" for line, text, target in measured[2]]
                lines = dict.fromkeys(text for _, text, _ in measured[2])
                unexplained += [f"{module}: {text}" for text in lines if (module, text) not in known]
        by_room[room] = {"branches": branches, "taken": taken}
    branches, taken = (sum(each[what] for each in by_room.values()) for what in ("branches", "taken"))
    return {
        "seeds": seeds,
        "broken": list(broken),
        "rooms": by_room,
        "branches": branches,
        "taken": taken,
        "left_out": left_out,
        "stale": _stale({place: why for place, why in known.items() if place[0].split("/")[0] in rooms}),
        "percent_of_branches": round(100 * taken / branches, 2),
        "missed": missed,
        "unexplained": unexplained,
    }


def _stale(known: Mapping[tuple[str, str], str]) -> list[str]:
    """Reasons for lines that have gone."""
    lines = {
        module: {line.strip() for line in (CORE / module).read_text(encoding="utf-8").splitlines()}
        for module, _ in known
    }
    return [f"{module}: {branch}" for module, branch in known if branch and branch not in lines[module]]


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
    for room, each in figures["rooms"].items():
        lines.append(f"{room}: {each['taken']} of {each['branches']}")
    lines.append(
        f"{figures['taken']} of {figures['branches']} branches taken in {figures['seeds']} seeds: "
        f"{figures['percent_of_branches']} %"
    )
    lines.append(f"left out as a whole: {', '.join(figures['left_out'])}")
    lines.append(f"in {PAGE.name} and not in the core: {figures['stale'] or 'none'}")
    lines.append(f"without a reason in {PAGE.name}: {figures['unexplained'] or 'none'}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
