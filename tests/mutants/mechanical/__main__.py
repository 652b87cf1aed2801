"""`python -m tests.mutants.mechanical`: change the code in many small ways; does somebody notice each?"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import attrs

from . import orphans
from .explained import explained
from .operators import Site, sites
from .reach import REPLICATION, ROOMS, measure, room_of, warm_up
from .trial import ALIVE, Tried, attempt, digest

SAMPLE = 500


def main() -> int:
    chosen = _arguments()
    everything = [site for room in chosen.rooms for site in sites(REPLICATION, room)]
    if chosen.list:
        print("\n".join(site.id for site in everything))
        return 0
    with orphans.ended():
        return _try(everything, chosen)


def _try(everything: list[Site], chosen: argparse.Namespace) -> int:
    known = explained()
    picked = _pick(everything, chosen)
    before = {} if chosen.results is None else tried_before(chosen.results, picked, chosen)
    todo = [site for site in picked if site.id not in before]
    reach = measure({room_of(site.file) for site in todo}, chosen.tests) if todo else None
    warm_up()
    tried = list(before.values())
    for site in todo:
        assert reach is not None
        one = attempt(site, chosen.seconds, reach, simulate=not chosen.tests_only)
        tried.append(one)
        if chosen.results:
            with chosen.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(attrs.asdict(one)) + "\n")
        if one.verdict in ALIVE or len(tried) % 25 == 0:
            verdict = "explained" if one.verdict in ALIVE and one.id in known else one.verdict
            print(f"{len(tried):4}/{len(picked)} {verdict:10} {one.id}", file=sys.stderr, flush=True)
    figures = _figures(len(everything), tried, known)
    print(json.dumps(figures) if chosen.json else _text(figures))
    return 1 if figures["survivors"] else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.mechanical", description=__doc__)
    parser.add_argument(
        "--rooms", type=_rooms, default=list(ROOMS), help=f"which rooms to change (default {','.join(ROOMS)})"
    )
    parser.add_argument(
        "--sample", type=int, help=f"how many changes to try (default {SAMPLE}, or all that --only names)"
    )
    parser.add_argument("--seed", type=int, default=1, help="which sample (default 1)")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="processor time for each change (default 20)"
    )
    parser.add_argument(
        "--tests",
        nargs="+",
        default=(),
        metavar="PATH",
        help="ask these unit tests (default: all of the rooms)",
    )
    parser.add_argument("--tests-only", action="store_true", help="ask the unit tests and not the simulator")
    parser.add_argument("--only", default="", metavar="REGEX", help="only changes whose id matches")
    parser.add_argument("--list", action="store_true", help="print the id of every change and stop")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a summary")
    parser.add_argument(
        "--results", type=Path, help="append each result to this file; what it has already is not tried again"
    )
    parser.add_argument(
        "--again", action="store_true", help="try those again that survived before, by --results"
    )
    return parser.parse_args()


def _rooms(text: str) -> list[str]:
    rooms = text.split(",")
    for room in rooms:
        if room not in ROOMS:
            raise argparse.ArgumentTypeError(f"{room!r} is not a room; use some of {','.join(ROOMS)}")
    return rooms


def _pick(everything: list[Site], chosen: argparse.Namespace) -> list[Site]:
    matching = [site for site in everything if re.search(chosen.only, site.id)]
    sample = chosen.sample or (len(matching) if chosen.only else SAMPLE)
    # By digest, so that the sample stays nearly the same while the code changes.
    order = sorted(matching, key=lambda site: hashlib.sha256(f"{chosen.seed} {site.id}".encode()).digest())
    return order[:sample]


def tried_before(file: Path, picked: list[Site], chosen: argparse.Namespace) -> dict[str, Tried]:
    """The last result of each change, if its file is still the same and it says all that is asked for now."""
    if not file.exists():
        return {}
    lines = file.read_text(encoding="utf-8").splitlines()
    told = {one.id: one for one in (Tried(**json.loads(line)) for line in lines)}
    known = {
        site.id: told[site.id] for site in picked if site.id in told and told[site.id].source == digest(site)
    }
    return {name: one for name, one in known.items() if _settles(one, chosen)}


def _settles(one: Tried, chosen: argparse.Namespace) -> bool:
    if one.verdict not in ALIVE:
        return True
    return not chosen.again and (chosen.tests_only or one.verdict != "unnoticed")


def _figures(possible: int, tried: list[Tried], known: dict[str, str]) -> dict[str, Any]:
    verdicts = Counter(one.verdict for one in tried)
    survived = [one.id for one in tried if one.verdict in ALIVE]
    return {
        "possible": possible,
        "sample": len(tried),
        "killed": len(tried) - len(survived),
        "killed_by": {verdict: count for verdict, count in sorted(verdicts.items()) if verdict not in ALIVE},
        "explained": sum(one in known for one in survived),
        "survivors": [one for one in survived if one not in known],
        "killed_and_explained": [one.id for one in tried if one.verdict not in ALIVE and one.id in known],
    }


def _text(figures: dict[str, Any]) -> str:
    by = ", ".join(f"{count} by {verdict}" for verdict, count in figures["killed_by"].items())
    lines = [f"survived: {one}" for one in figures["survivors"]]
    lines.append(
        f"{figures['sample']} of {figures['possible']} possible changes: {figures['killed']} noticed ({by}), "
        f"{figures['explained']} explained, {len(figures['survivors'])} unexplained"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
