"""`python -m tests.chaos --seconds S --seed N --transport tcp|tls|shm --store STORE --json`: faults, by a seed.

With `--kafka`: Kafka's clients for Java and C write and read. With `--groups`: consumer groups. With
`--transactions`: consume, transform and produce in transactions. With `--state`: clients of replicated state. With
`--power`: machines lose their power. With `--flips`: one byte of one file is changed.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any, get_args

from .defects import DEFECTS
from .faults import FAULTS
from .flips.plan import FlipPlan, timed_flips
from .groups import FAULT_NAMES, timed_groups
from .kafka_clients import KafkaRun
from .power.rounds import PowerPlan, timed_rounds
from .run import Injected, Plan, Report, Run, StoreKind, say, timed
from .state import CLIENT_FAULTS, StateRun
from .transactions import FAULT_NAMES as OF_TRANSACTIONS
from .transactions import timed_transactions


def summary(report: Report, seconds: float) -> dict[str, Any]:
    """The report as one object."""
    by_name: dict[str, list[Injected]] = defaultdict(list)
    for one in report.injected:
        by_name[one.name].append(one)
    history, verdict = report.history, report.verdict
    return {
        "seed": report.plan.seed,
        "transport": report.plan.transport,
        "store": report.plan.store,
        "nodes": report.plan.nodes,
        "seconds": round(seconds, 1),
        "passed": report.passed,
        "sent": history.sent,
        "acked": history.acknowledged["all"],
        "acknowledged": history.acknowledged,
        "lost": verdict.lost,
        "duplicated": verdict.duplicated,
        "violations": [str(each) for each in verdict.violations],
        "problems": report.problems,
        "faults": {
            name: {
                "times": len(all_of_it),
                "bites": sum(bool(one.evidence) for one in all_of_it),
                "recovery_s_max": max(
                    (o.recovery_s for o in all_of_it if o.recovery_s is not None), default=None
                ),
                "writes_ms": in_milliseconds(
                    [took for one in all_of_it for took in history.latencies(one.began, one.over)]
                ),
            }
            for name, all_of_it in sorted(by_name.items())
        },
        "failed_acks_all": dict(history.failed_all),
        "errors_of_clients": dict(history.failed),
        **report.more,
    }


def in_milliseconds(latencies: list[float]) -> dict[str, float]:
    """How long acks=all writes took that were sent during faults of a kind; empty if there were none."""
    ordered = sorted(latencies)
    if not ordered:
        return {}
    shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {
        name: round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)
        for name, share in shares.items()
    }


def _above_zero(text: str) -> float:
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{text}: use a number above 0")
    return number


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=_above_zero, default=60, help="how long faults are injected")
    parser.add_argument(
        "--times", type=int, default=0, help="how many faults are injected, in place of --seconds"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--transport", choices=["tcp", "tls", "shm"], default="tcp")
    parser.add_argument("--store", choices=get_args(StoreKind), default="sqlite")
    parser.add_argument("--nodes", type=int, choices=[3, 4, 5], default=3)
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        choices=sorted({*(fault.name for fault in FAULTS), *FAULT_NAMES, *OF_TRANSACTIONS, *CLIENT_FAULTS}),
        metavar="FAULT",
        help="a fault by its name, see docs/reliability.md; several for several",
    )
    parser.add_argument(
        "--defect", choices=sorted(DEFECTS), default="", help="plant an error, which must be found"
    )
    parser.add_argument(
        "--kafka", action="store_true", help="Kafka's clients for Java and C, in place of our own"
    )
    parser.add_argument(
        "--groups",
        action="store_true",
        help="consumer groups: members and coordinators come, go and stand still",
    )
    parser.add_argument(
        "--transactions",
        action="store_true",
        help="workers that consume, transform and produce in transactions, which fail as nodes and links do",
    )
    parser.add_argument(
        "--state",
        action="store_true",
        help="clients of replicated state, whose calls must be explained by one order for each key",
    )
    parser.add_argument(
        "--power", action="store_true", help="cut the power of the machine of all nodes, or of one of three"
    )
    parser.add_argument("--rounds", type=int, default=10, help="how often the power is cut")
    parser.add_argument(
        "--machines", type=int, choices=[1, 3], default=1, help="1: all nodes and the store share a device"
    )
    parser.add_argument(
        "--durability",
        choices=["replicated", "flushed"],
        default="replicated",
        help="of all topics of --power",
    )
    parser.add_argument(
        "--flips",
        action="store_true",
        help="damage one small file of a cluster that does not run, and start it: every byte of every file",
    )
    parser.add_argument("--sample", type=int, default=0, help="how many faults of --flips; 0: all")
    parser.add_argument(
        "--processes", action="store_true", help="each node of --flips is a process: slower, for a sample"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes of --flips")
    parser.add_argument("--folder", type=Path, help="keep everything here, in place of a temporary folder")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    given = parser.parse_args()
    logging.getLogger("insync").addHandler(logging.NullHandler())
    # Hosts, mounts and processes are taken down however the run ends: trio knows how to end of a SIGINT.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    plan = Plan(
        seconds=given.seconds,
        times=given.times,
        seed=given.seed,
        transport=given.transport,
        store=given.store,
        nodes=given.nodes,
        only=tuple(given.only),
        defect=given.defect,
    )
    with tempfile.TemporaryDirectory(prefix="insync-chaos-") as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if given.power:
            power = PowerPlan(
                rounds=given.rounds, seed=given.seed, machines=given.machines, durability=given.durability
            )
            return _power(power, folder.absolute(), as_json=given.json)
        if given.flips:
            flips = FlipPlan(seed=given.seed, sample=given.sample, jobs=given.jobs, processes=given.processes)
            return _flips(flips, folder.absolute(), as_json=given.json)
        if given.groups:
            return _groups(plan, folder.absolute(), as_json=given.json)
        if given.transactions:
            return _transactions(plan, folder.absolute(), as_json=given.json)
        kind = KafkaRun if given.kafka else StateRun if given.state else Run
        report, seconds = timed(plan, folder.absolute(), kind)
    told = summary(report, seconds)
    for line in (*told["violations"][:50], *told["problems"]):
        say(f"BROKEN: {line}")
    words = (
        f"{told['acked']} acknowledged, {told['lost']} lost, {told['duplicated']} duplicated, "
        f"{len(report.injected)} faults in {seconds:.0f} s"
    )
    return _end(told, words, passed=report.passed, as_json=given.json)


def _end(told: dict[str, Any], words: str, *, passed: bool, as_json: bool) -> int:
    """Print the report, or a sentence on it; the exit status."""
    print(json.dumps(told) if as_json else f"{'passed' if passed else 'FAILED'}: {words}")
    return 0 if passed else 1


def _power(plan: PowerPlan, folder: Path, *, as_json: bool) -> int:
    rounds, seconds = timed_rounds(plan, folder)
    told = rounds.summary(seconds)
    words = (
        f"{told['rounds']} cuts, all nodes started after {told['started_by_themselves']}; "
        f"{told['acknowledged']} acknowledged, {told['lost']} lost, {told['lost_durable']} of them on a device, "
        f"in {seconds:.0f} s"
    )
    return _end(told, words, passed=rounds.passed, as_json=as_json)


def _flips(plan: FlipPlan, folder: Path, *, as_json: bool) -> int:
    flips, seconds = timed_flips(plan, folder)
    told = flips.summary(seconds)
    words = (
        f"{told['faults']} faults of {told['of']}, {told['lost']} lost, {told['unnamed']} unnamed, "
        f"{told['harmed']} harmed others, {told['refused']} refused by a node, in {seconds:.0f} s"
    )
    return _end(told, words, passed=flips.passed, as_json=as_json)


def _groups(plan: Plan, folder: Path, *, as_json: bool) -> int:
    report, seconds = timed_groups(plan, folder)
    for line in (*report.verdict.violations, *report.problems):
        say(f"BROKEN: {line}")
    words = (
        f"{report.sent} acknowledged, {report.verdict.processed} processed, {report.verdict.repeated} repeated, "
        f"{len(report.suffered)} faults in {seconds:.0f} s"
    )
    return _end(report.summary(seconds), words, passed=report.passed, as_json=as_json)


def _transactions(plan: Plan, folder: Path, *, as_json: bool) -> int:
    report, seconds = timed_transactions(plan, folder)
    for line in (*report.verdict.sentences[:50], *report.problems):
        say(f"BROKEN: {line}")
    told = report.summary(seconds)
    words = (
        f"{report.sent} inputs, {told['outputs']} outputs, {told['committed']} transactions committed, "
        f"{told['aborted']} aborted, {len(report.suffered)} faults in {seconds:.0f} s"
    )
    return _end(told, words, passed=report.passed, as_json=as_json)


if __name__ == "__main__":
    sys.exit(main())
