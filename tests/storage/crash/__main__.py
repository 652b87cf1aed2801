"""`python -m tests.storage.crash [--kills N] [--seed N] [--policy P] [--json]`: kill a writer, then look.

Ends with status 1, and keeps the folder, if a promise was broken: the log serves only what was written, loses
nothing that its writer was told was there, and says what opening it cut off.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import attrs

from insync.storage import DiskLog, StorageError, verify

from .model import Model, ViolationError
from .notes import read_notes
from .writer import KEY, opened

POLICIES = ("delete", "compact", "compact,delete")


@attrs.define
class Report:
    """What so many kills came to."""

    seed: int
    policy: str
    kills: int = 0
    clean_stops: int = 0
    killed_during: Counter[str] = attrs.Factory(Counter)
    torn: int = 0
    """Kills that left a torn tail, which was cut."""
    bytes_cut: int = 0
    records_written: int = 0
    violation: str = ""


def crash(
    folder: Path, report: Report, kills: int, told: Callable[[Report], None] = lambda _: None
) -> Report:
    """Kill a writer of the log in `folder` so many times."""
    noise = random.Random(report.seed)
    model = Model()
    try:
        while report.kills < kills:
            life = report.seed * 10_000 + report.kills + report.clean_stops
            _live(folder, life, noise, model, report)
            _look(folder, noise, model, report)
            told(report)
    except (ViolationError, StorageError) as error:
        report.violation = f"after kill {report.kills}: {type(error).__name__}: {error}"
    return report


def _live(folder: Path, life: int, noise: random.Random, model: Model, report: Report) -> None:
    """One writer, from its start to its end."""
    notes = folder / "notes"
    notes.write_text("")
    command = [sys.executable, "-m", "tests.storage.crash.writer"]
    writer = subprocess.Popen([*command, str(folder / "data"), str(notes), str(life), report.policy])
    killed = False
    try:
        while writer.poll() is None and not notes.stat().st_size:
            time.sleep(0.001)
        writer.wait(noise.expovariate(1 / 0.15))
    except subprocess.TimeoutExpired:
        killed = True
    finally:
        writer.kill()
        status = writer.wait()
    if status not in (0, -9):
        raise ViolationError(f"the writer ended by itself with status {status}")
    report.kills += killed
    report.clean_stops += not killed
    for note in read_notes(notes):
        model.take(note)
        report.records_written += note.what == "append" and note.done
    if killed:
        report.killed_during[model.underway.what if model.underway else "nothing noted"] += 1


def _look(folder: Path, noise: random.Random, model: Model, report: Report) -> None:
    """Open what was left."""
    data = folder / "data"
    log_folder = data / f"{KEY[0]}-{KEY[1]}"
    before = {int(path.stem): path.stat().st_size for path in log_folder.glob("*.log")}
    directory = opened(data, report.policy)
    try:
        log: DiskLog = directory.open_log(*KEY, create=True)
        report.torn += log.recovery.bytes_cut > 0
        report.bytes_cut += log.recovery.bytes_cut
        model.check(log, before)
    finally:
        directory.close(clean=noise.random() < 0.3)
    found = verify(data)
    if found.defects:
        raise ViolationError(f"{len(found.defects)} defects, the first: {found.defects[0]}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.storage.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", choices=POLICIES, default="delete", help="cleanup_policy of the log")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="insync-crash-"))

    def tell(report: Report) -> None:
        if sys.stderr.isatty():
            print(f"\r{report.kills} of {args.kills} kills", end="", file=sys.stderr, flush=True)

    report = crash(folder, Report(args.seed, args.policy), args.kills, tell)
    print(
        f"\r{report.kills} kills, {report.torn} torn tails cut: {report.violation or 'no promise was broken'}"
    )
    if report.violation:
        print(f"The files are in {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder)
    if args.json:
        print(json.dumps({"ok": not report.violation, **attrs.asdict(report)}))
    return int(bool(report.violation))


if __name__ == "__main__":
    sys.exit(main())
