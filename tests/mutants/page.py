"""`python -m tests.mutants.page RESULTS... > docs/planted-errors.md`: what noticed each planted error, and when.

RESULTS are files that `python -m tests.mutants --results FILE` has written; of an error that stands in several of
them the last one counts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from .catalogue import load
from .hunt import Found
from .impossible import IMPOSSIBLE

HEAD = """# Planted errors, and what notices them

`python -m tests.mutants` plants each of these errors in the core alone, and runs seed after seed of
`insync simulate` until the oracle reports a violation. A seed counts only if it is clean without the error.
[The protocol](protocol.md) lists the rules that the errors break, and the invariants. These commands make the page:

    python -m tests.mutants --seconds 400 --survey 0 --results FILE
    python -m tests.mutants.page FILE > docs/planted-errors.md

The seconds are processor time on a busy machine. Errors in the files `transacting` and `transactions` of
`tests/mutants/planted` are hunted in seeds of `insync simulate --profile transactions`, those in `shards` and
`groups_*` in seeds of `--profile groups`. A change of the simulator may change the seeds at which it finds an
error. This command lists the rows that no longer hold:

    python -m tests.mutants.confirm          # minutes, not hours
"""


def read(files: Iterable[Path]) -> dict[str, Found]:
    """The results by name."""
    found: dict[str, Found] = {}
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line).get("found")
            if entry is not None:
                found[entry["mutant"]] = Found(**entry)
    return found


def page(found: dict[str, Found], names: Sequence[str]) -> str:
    """The page, with a row for each of `names`."""
    caught = [found[name] for name in names if name in found and found[name].caught]
    missed = [name for name in names if name in found and not found[name].caught]
    untried = [name for name in names if name not in found]
    lines = [HEAD, f"{len(caught)} of {len(names)} noticed; missed: {', '.join(missed) or 'none'}."]
    if untried:
        lines.append(f"Not tried in this run: {', '.join(untried)}.")
    lines += ["", "| error | | noticed by | at seed | seconds |", "|---|---|---|---|---|"]
    for each in caught:
        title = each.title.replace("|", "\\|")
        lines.append(f"| {each.mutant} | {title} | {each.invariant} | {each.seed} | {each.seconds:g} |")
    lines += ["", "Errors that no seed can show:", "", "| error | why |", "|---|---|"]
    lines += [f"| {name} | {why} |" for name, why in IMPOSSIBLE.items()]
    return "\n".join(lines) + "\n"


def order(name: str) -> tuple[str, int, str]:
    """By letter, then by number."""
    digits = "".join(letter for letter in name if letter.isdigit())
    return name[0], int(digits), name


def main(files: Sequence[Path]) -> str:
    return page(read(files), sorted(load(), key=order))


if __name__ == "__main__":
    print(main([Path(each) for each in sys.argv[1:]]), end="")
