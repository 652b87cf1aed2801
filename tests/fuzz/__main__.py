"""`python -m tests.fuzz AREA [--seconds N] [--seed N] [--keep FOLDER] [--json]`: fuzz one area.

Builds each harness with clang, AddressSanitizer and UndefinedBehaviorSanitizer, lets libFuzzer try inputs, and asks
a slow reference in Python about every input that reached something new. Targets in Python are tried by a fuzzer of
our own. Ends with status 1 if anything was found.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from ._fuzzing import MISSING, FuzzError, Outcome, Target, fuzz, is_there
from ._python import PythonTarget, fuzz_python


def areas() -> list[str]:
    """The modules that have TARGETS."""
    found = (module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]))
    return sorted(name for name in found if not name.startswith(("_", "test_")))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("area", choices=areas())
    parser.add_argument("--seconds", type=float, default=60, help="for all harnesses together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder of programs and inputs, to go on with another time")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    args = parser.parse_args()
    if any(isinstance(each, Target) for each in targets_of(args.area)) and not is_there():
        print(MISSING, file=sys.stderr)
        return 2
    folder = args.keep or Path(tempfile.mkdtemp(prefix="insync-fuzz-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        outcomes = run(args.area, folder, args.seconds, args.seed)
    except FuzzError as error:
        print(error, file=sys.stderr)
        return 2
    failed = any(each.failure for each in outcomes)
    if args.keep is None and not failed:
        shutil.rmtree(folder)
    if args.json:
        rows = [attrs.asdict(each, filter=attrs.filters.exclude("input_file")) for each in outcomes]
        print(json.dumps({"area": args.area, "seconds": args.seconds, "ok": not failed, "targets": rows}))
    return int(failed)


def targets_of(area: str) -> Sequence[Target | PythonTarget]:
    return importlib.import_module(f".{area}", __package__).TARGETS


def run(area: str, folder: Path, seconds: float, seed: int) -> list[Outcome]:
    targets = targets_of(area)
    outcomes = []
    for target in targets:
        how: Callable[..., Outcome] = fuzz_python if isinstance(target, PythonTarget) else fuzz
        found = how(target, folder, seconds / len(targets), seed)
        outcomes.append(found)
        print(
            f"{found.name}: {found.units} inputs, {found.coverage} edges, {found.corpus} kept, "
            f"{found.compared} compared, {'FAILED' if found.failure else 'nothing found'}",
            flush=True,
        )
        if found.failure:
            print(f"{found.failure}\nThe input: {found.input_file}", file=sys.stderr)
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
