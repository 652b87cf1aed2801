"""`insync simulate`: many seeds of a simulated cluster under faults, on all cores; a failing one is made short."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Literal

import attrs
from cyclopts import Parameter, validators

from ..core.wording import counted
from ..simulation import (
    FAULTS,
    Replay,
    Result,
    Service,
    Settings,
    minimise,
    minimise_service,
    read,
    replay_of,
    run,
    run_service,
    run_watched,
)
from ..simulation.run import events_played
from .clusters import say
from .errors import UsageError

SEEDS_PER_JOB = 10
YARDSTICK_STEPS = 1_000_000
TRACE_LINES = 60
VIOLATIONS_TOLD = 20


@attrs.define
class Sums:
    """The sums of some seeds' results."""

    seeds: int = 0
    events: int = 0
    played: int = 0
    """Events with those of runs that were made again; what `seconds` were spent on."""
    seconds: float = 0.0
    elections: int = 0
    truncations: int = 0
    isr_changes: int = 0
    crashes: int = 0
    cuts: int = 0
    committed_records: int = 0
    faults: Counter[str] = attrs.Factory(Counter)
    violations: list[tuple[int, str]] = attrs.Factory(list)

    def add(self, result: Result) -> None:
        self.seeds += 1
        for name in _COUNTED:
            setattr(self, name, getattr(self, name) + getattr(result, name))
        self.faults.update(result.faults.keys())
        if result.violation is not None:
            self.violations.append((result.seed, str(result.violation)))

    def merge(self, other: Sums) -> None:
        self.seeds += other.seeds
        self.played += other.played
        self.seconds += other.seconds
        for name in _COUNTED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.faults.update(other.faults)
        self.violations += other.violations


_COUNTED = (
    "events",
    "elections",
    "truncations",
    "isr_changes",
    "crashes",
    "cuts",
    "committed_records",
)


def simulate(
    *,
    seeds: str = "0:200",
    jobs: Annotated[int, Parameter(show_default="one for each core", validator=validators.Number(gte=0))] = 0,
    json_output: Annotated[bool, Parameter(name="--json")] = False,
    replay: Path | None = None,
    save: Path | None = None,
    service: str = "",
    profile: Literal["", "transactions", "groups"] = "",
) -> int:
    """Run a simulated cluster under faults, once for each seed, and check the protocol's promises.

    Exits with 1 if one is broken, and prints the seed with the shortest run found that breaks the same one.

    Example: `insync simulate --seeds 0:5000 --jobs 2`

    Parameters
    ----------
    seeds
        From where to where, the end not included: 0:5000. One number is one seed.
    jobs
        Processes.
    json_output
        Print one JSON object instead of text; `faults` says in how many seeds each kind occurred.
    replay
        Play this file, which an earlier call wrote, and print its trace.
    save
        Where the shortened run goes (default: insync-seed-N.json in the current directory).
    service
        MODULE:NAME of a service of yours: a `Service` of `insync.replication.simulation`, or what makes one.
    profile
        Host groups, or transactions, in every seed, not only in those that draw them.
    """
    if service:
        _load(service)
    if replay is not None:
        return _replay(read(replay), json_output=json_output, service=service)
    first, end = _range(seeds)
    total, started = Sums(), time.perf_counter()
    for done in _all(first, end, jobs or os.cpu_count() or 1, service, profile):
        total.merge(done)
    total.violations.sort()
    say(*[_json(total)] if json_output else _lines(total, time.perf_counter() - started))
    sys.stdout.flush()
    if not total.violations:
        return 0
    for seed, text in total.violations[:VIOLATIONS_TOLD]:
        say(f"seed {seed}: {text}", to=sys.stderr)
    seed = total.violations[0][0]
    target = save if save is not None else Path(f"insync-seed-{seed}.json")
    _explain(seed, target, service, profile)
    return 1


def _range(seeds: str) -> tuple[int, int]:
    first, colon, end = seeds.partition(":")
    try:
        bounds = (int(first), int(end)) if colon else (int(first), int(first) + 1)
    except ValueError:
        raise UsageError(
            f"--seeds {seeds!r} is not a range: write for example 0:5000, or one number"
        ) from None
    if not 0 <= bounds[0] < bounds[1]:
        raise UsageError(f"--seeds {seeds!r} is empty: write for example 0:5000, or one number")
    return bounds


def _load(service: str) -> Service:
    """The service that `--service` names; in the current directory, too."""
    module, colon, name = service.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = getattr(importlib.import_module(module), name) if colon and module and name else None
    except (ImportError, AttributeError) as error:
        raise UsageError(f"--service {service!r} cannot be loaded: {error}") from error
    if callable(found) and not isinstance(found, Service):
        found = found()
    if not isinstance(found, Service):
        raise UsageError(
            f"--service {service!r} is not a service: write MODULE:NAME of a Service or its class"
        )
    return found


def _all(first: int, end: int, jobs: int, service: str = "", profile: str = "") -> Iterator[Sums]:
    """The sums of all seeds, part by part, in order."""
    parts = [(start, min(end, start + SEEDS_PER_JOB)) for start in range(first, end, SEEDS_PER_JOB)]
    if jobs == 1 or len(parts) == 1:
        for part in parts:
            yield run_seeds(*part, service, profile)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(parts)), mp_context=context, initializer=end_with_parent) as pool:
        futures: list[Future[Sums]] = [pool.submit(run_seeds, *part, service, profile) for part in parts]
        try:
            for future in futures:
                yield future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def end_with_parent() -> None:
    """In a worker: stop at once when the process that wants the results is gone, however it went."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def run_seeds(first: int, end: int, service: str = "", profile: str = "") -> Sums:
    """The sums of the seeds from `first` to before `end`; the seconds are those of the processor."""
    sums, started = Sums(), time.process_time()
    for seed in range(first, end):
        if service:
            result = run_service(_load(service), seed).result
            sums.played += result.events
        else:
            result = run_watched(seed, Settings.swarm(seed, profile=profile))
            sums.played += events_played(result)
        sums.add(result)
    sums.seconds = time.process_time() - started
    return sums


def yardstick() -> float:
    """Steps a second of a fixed loop of pure Python, to tell a slow machine from a slow simulator."""
    table: dict[int, int] = {}
    started = time.process_time()
    for step in range(YARDSTICK_STEPS):
        key = step & 1023
        table[key] = table.get(key, 0) + step
    return YARDSTICK_STEPS / (time.process_time() - started)


def _figures(total: Sums) -> dict[str, Any]:
    rate = total.played / total.seconds if total.seconds else 0.0
    measure = yardstick()
    return {
        "seeds": total.seeds,
        "events": total.events,
        "events_per_second": round(rate),
        "yardstick_per_second": round(measure),
        "events_per_yardstick": round(rate / measure, 6),
        "violations": len(total.violations),
        "elections": total.elections,
        "truncations": total.truncations,
        "isr_changes": total.isr_changes,
        "crashes": total.crashes,
        "cuts": total.cuts,
        "committed_records": total.committed_records,
        "faults": {label: total.faults[label] for label in FAULTS},
        "violated": [{"seed": seed, "violation": text} for seed, text in total.violations[:VIOLATIONS_TOLD]],
    }


def _json(total: Sums) -> str:
    return json.dumps(_figures(total))


def _lines(total: Sums, seconds: float) -> list[str]:
    figures = _figures(total)
    seen = ", ".join(f"{label} in {count}" for label, count in figures["faults"].items())
    return [
        f"{counted(total.seeds, 'seed')}, {total.events} events in {seconds:.1f} s "
        f"({figures['events_per_second']} events a second on each core)",
        f"{counted(total.committed_records, 'record')} committed, {total.elections} elections, "
        f"{total.isr_changes} ISR changes, {total.truncations} truncations, {total.crashes} crashes, "
        f"{total.cuts} cut networks",
        f"faults: {seen}",
        counted(len(total.violations), "violation"),
    ]


def _explain(seed: int, target: Path, service: str, profile: str) -> None:
    """Make the failing run short, print it and store it."""
    if service:
        short = minimise_service(_load(service), run_service(_load(service), seed).result)
    else:
        short = minimise(run(seed, Settings.swarm(seed, profile=profile)))
    target.write_text(replay_of(short).dumps(), encoding="utf-8")
    _print_trace(short)
    what = f"--service {service} " if service else ""
    say(f"play it again: insync simulate {what}--replay {target}", to=sys.stderr)


def _replay(replay: Replay, *, json_output: bool, service: str) -> int:
    if service:
        played = run_service(_load(service), replay.seed, replay.settings, replay.script, keep_trace=True)
        result = played.result
    else:
        result = run(replay.seed, replay.settings, replay.script, keep_trace=True)
    violation = str(result.violation) if result.violation is not None else None
    if json_output:
        say(json.dumps({"seed": result.seed, "digest": result.digest, "violation": violation}))
    else:
        _print_trace(result)
    return 1 if violation is not None else 0


def _print_trace(result: Result) -> None:
    script = result.script
    say(
        f"seed {result.seed} with {counted(len(script.schedule), 'fault')} and "
        f"{counted(len(script.mishaps), 'mishap')} of single messages and "
        f"writes; the last of {len(result.trace)} lines:",
        to=sys.stderr,
    )
    for line in result.trace[-TRACE_LINES:]:
        say(line, to=sys.stderr)
    say(result.violation or "every promise was kept", to=sys.stderr)
