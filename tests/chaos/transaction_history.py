"""What workers with transactions wrote down, what readers were given, and whether it fits together.

After the checks of Jepsen's tests for Kafka: lost, duplicate, aborted read, torn commit, non-monotonic polls,
cycles. Knows nothing of insync's code. Each input makes `COPIES` outputs in different partitions, whose values
say of which input and of which transaction they are.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import attrs

from .cycles import Done, against_time, mixed_cycle, read_cycle, write_cycle

COPIES = 2
_NEVER = float("inf")

Place = tuple[str, int]
"""Topic and partition."""


@attrs.frozen(order=True)
class Output:
    """Copy `copy` of what was made of input `number` of input partition `partition`, in one transaction."""

    partition: int
    number: int
    copy: int
    transaction: str

    def encode(self) -> bytes:
        return f"{self.partition}:{self.number}:{self.copy}:{self.transaction}".encode()

    @classmethod
    def decode(cls, value: bytes) -> Output:
        """Raises ValueError if it is none."""
        partition, number, copy, transaction = value.decode().split(":", 3)
        return cls(int(partition), int(number), int(copy), transaction)


@attrs.define
class Transaction:
    """What its worker wrote down. asked: before it asked for the commit; sent: all that it sent, by then.

    outcome: "committed" or "aborted" if the worker was told so for certain, else empty. Times are of the machine's
    monotonic clock; infinity: not yet, as far as is known.
    """

    sent: frozenset[tuple[int, int]] = frozenset()
    """Inputs, by partition and number: each with all its copies."""
    asked: bool = False
    outcome: str = ""
    reads: dict[str, float] = attrs.Factory(dict)
    """The transactions whose records it was given, and when."""
    began: float = 0.0
    asked_at: float = 0.0
    ended: float = _NEVER


@attrs.frozen
class Polled:
    """One record as a reader got it."""

    partition: int
    offset: int
    value: bytes
    at: float = _NEVER
    """When the reader had it, by the machine's monotonic clock."""


@attrs.frozen
class Opened:
    """A producer of a transactional id was open at `at`; it may have been so for others from `since` on."""

    transactional_id: str
    process: str
    since: float
    at: float = _NEVER


@attrs.frozen
class Fenced:
    """A producer opened at `opened` was told at `at` that another one has its transactional id."""

    transactional_id: str
    process: str
    opened: float
    at: float


@attrs.define
class TransactionHistory:
    """All processes of a run together, and its readers.

    live: by a reader of committed records, while all went on; final: by another one, of everything, at the end.
    everything: by a reader of all records, at the end. ends: last stable offset and high watermark at the end.
    offsets: what the group had committed, each time that it was looked at.
    """

    transactions: dict[str, Transaction] = attrs.Factory(dict)
    opened: list[Opened] = attrs.Factory(list)
    fenced: list[Fenced] = attrs.Factory(list)
    errors: Counter[str] = attrs.Factory(Counter)
    live: list[Polled] = attrs.Factory(list)
    final: list[Polled] = attrs.Factory(list)
    everything: list[Polled] = attrs.Factory(list)
    ends: dict[Place, tuple[int, int]] = attrs.Factory(dict)
    offsets: list[dict[int, int]] = attrs.Factory(list)

    def read(self, process: str, file: Path) -> None:
        """Take in one worker's file. A last line that was cut is none."""
        for line in file.read_text().splitlines() if file.exists() else ():
            try:
                event = json.loads(line)
            except ValueError:
                break
            self._took(process, event)

    def _took(self, process: str, event: Mapping[str, object]) -> None:
        match event:
            case {"what": "begun", "transaction": str(name), "at": float(at)}:
                self.transactions[name] = Transaction(began=at)
            case {"what": "read", "transaction": str(name), "of": list(of), "at": float(at)}:
                self.transactions[name].reads |= dict.fromkeys(of, at)
            case {"what": "asked", "transaction": str(name), "inputs": dict(inputs), "at": float(at)}:
                found = self.transactions[name]
                found.asked, found.asked_at = True, at
                found.sent = frozenset((int(at), each) for at, numbers in inputs.items() for each in numbers)
            case {"what": "committed" | "aborted" as outcome, "transaction": str(name), "at": float(at)}:
                found = self.transactions[name]
                found.outcome, found.ended = outcome, at
            case {"what": "opening", "id": str(name), "since": float(since)}:
                self.opened.append(Opened(name, process, since))
            case {"what": "opened", "at": float(at)}:
                self.opened[-1] = attrs.evolve(self.opened[-1], at=at)
            case {"what": "fenced", "id": str(name), "opened": float(opened), "at": float(at)}:
                self.fenced.append(Fenced(name, process, opened, at))
            case {"what": "error", "said": str(said)}:
                self.errors[said.partition(":")[0]] += 1


@attrs.frozen
class TransactionVerdict:
    """violations: sentences, by their kind. outputs: records that readers of committed records got in the end.

    mixed: a cycle of each kind that transactions without isolation of writes may form, if there was one.
    """

    violations: dict[str, list[str]]
    outputs: int
    mixed: dict[str, list[str]] = attrs.Factory(dict)

    @property
    def sentences(self) -> list[str]:
        return [f"{kind}: {each}" for kind, all_of_it in self.violations.items() for each in all_of_it]


def judge_transactions(history: TransactionHistory, inputs: Mapping[int, int]) -> TransactionVerdict:
    """inputs: how many records each input partition has, all of them acknowledged; all are through."""
    outputs = Counter(Output.decode(each.value) for each in history.final)
    logs, done = _logs(history), _done(history)
    found = {
        "lost": _lost(outputs, inputs),
        "duplicate": _duplicate(outputs),
        "made up": _made_up(outputs, inputs),
        "aborted read": _aborted_read(history),
        "early read": _early_read(history),
        "torn commit": _torn(history, outputs),
        "lost commit": _lost_commit(history, outputs),
        "non-monotonic poll": _non_monotonic(history.live, "live"),
        "skipped by polls": _skipped(history),
        "offset with two values": _two_values(history),
        "last stable offset": _not_stable(history),
        "fenced by nobody": _fenced_by_nobody(history),
        "offsets go back": _offsets_go_back(history),
        "G1c": _as_sentence(read_cycle(done)),
        "against time": _as_sentence(against_time(done, logs)),
    }
    violations = {kind: sorted(told) for kind, told in found.items()}
    mixed = {"G0": write_cycle(logs), "G1c with ww": mixed_cycle(done, logs)}
    return TransactionVerdict(
        {kind: told for kind, told in violations.items() if told},
        len(history.final),
        {kind: cycle for kind, cycle in mixed.items() if cycle},
    )


def _logs(history: TransactionHistory) -> dict[int, list[tuple[int, str]]]:
    """Committed records by partition, in the order of offsets."""
    found: dict[int, list[tuple[int, str]]] = {}
    for each in sorted(history.final, key=lambda each: (each.partition, each.offset)):
        transaction = Output.decode(each.value).transaction
        found.setdefault(each.partition, []).append((each.offset, transaction))
    return found


def _done(history: TransactionHistory) -> list[Done]:
    """The transactions that are committed: their workers were told so, or their records are there."""
    there = {Output.decode(each.value).transaction for each in history.final}
    return [
        Done(name, frozenset(each.reads), each.began, each.ended if each.outcome == "committed" else _NEVER)
        for name, each in history.transactions.items()
        if name in there or each.outcome == "committed"
    ]


def _as_sentence(cycle: Sequence[str]) -> list[str]:
    return [" -> ".join(cycle)] if cycle else []


def _lost(outputs: Mapping[Output, int], inputs: Mapping[int, int]) -> Iterable[str]:
    there = {(each.partition, each.number, each.copy) for each in outputs}
    for partition, count in inputs.items():
        for number in range(count):
            missing = [copy for copy in range(COPIES) if (partition, number, copy) not in there]
            if missing:
                yield f"input {partition}:{number} has no output, copies {missing}"


def _duplicate(outputs: Mapping[Output, int]) -> Iterable[str]:
    times: dict[tuple[int, int, int], list[str]] = {}
    for each, count in outputs.items():
        times.setdefault((each.partition, each.number, each.copy), []).extend([each.transaction] * count)
    for (partition, number, copy), by in times.items():
        if len(by) > 1:
            yield f"copy {copy} of input {partition}:{number} is there {len(by)} times, by {sorted(by)}"


def _made_up(outputs: Mapping[Output, int], inputs: Mapping[int, int]) -> Iterable[str]:
    for each in outputs:
        if each.number >= inputs.get(each.partition, 0):
            yield f"there is an output of input {each.partition}:{each.number}, which was not acknowledged"


def _aborted_read(history: TransactionHistory) -> Iterable[str]:
    """Readers of committed records get nothing that was aborted, nor what nobody has asked to be committed."""
    names = {Output.decode(each.value).transaction for each in (*history.live, *history.final)}
    for name in names.union(*(each.reads for each in history.transactions.values())):
        known = history.transactions.get(name)
        if known is None or not known.asked:
            yield f"{name} was read, and nobody had asked to commit it"
        elif known.outcome == "aborted":
            yield f"{name} was read, and its worker was told that it is aborted"


def _early_read(history: TransactionHistory) -> Iterable[str]:
    """G1b: nobody reads of a transaction before all of it is sent and its worker has asked for its commit."""
    polled = ((Output.decode(each.value).transaction, each.at) for each in history.live)
    by_workers = (read for each in history.transactions.values() for read in each.reads.items())
    first: dict[str, float] = {}
    for name, at in (*polled, *by_workers):
        first[name] = min(at, first.get(name, _NEVER))
    for name, at in first.items():
        known = history.transactions.get(name)
        if known is not None and known.asked and at < known.asked_at:
            yield f"{name} was read {known.asked_at - at:.3f} s before its worker asked to commit it"


def _torn(history: TransactionHistory, outputs: Mapping[Output, int]) -> Iterable[str]:
    by_name: dict[str, set[tuple[int, int, int]]] = {}
    for each in outputs:
        by_name.setdefault(each.transaction, set()).add((each.partition, each.number, each.copy))
    for name, there in by_name.items():
        known = history.transactions.get(name)
        if known is None or not known.asked:
            continue
        sent = {(partition, number, copy) for partition, number in known.sent for copy in range(COPIES)}
        if there != sent:
            missing, more = sorted(sent - there), sorted(there - sent)
            yield f"{name} was read in part: {len(missing)} of {len(sent)} missing, {len(more)} too many"


def _lost_commit(history: TransactionHistory, outputs: Mapping[Output, int]) -> Iterable[str]:
    there = {each.transaction for each in outputs}
    for name, known in history.transactions.items():
        if known.outcome == "committed" and known.sent and name not in there:
            yield f"{name} is committed, as its worker was told, and nothing of it is there"


def _non_monotonic(polled: Sequence[Polled], reader: str) -> Iterable[str]:
    reached: dict[int, int] = {}
    for each in polled:
        before = reached.get(each.partition, -1)
        if each.offset <= before:
            yield f"the {reader} reader got {each.partition} at {each.offset} after {before}"
        reached[each.partition] = each.offset


def _skipped(history: TransactionHistory) -> Iterable[str]:
    """Of what is there in the end, the live reader got everything up to where it came, and nothing else."""
    live: dict[int, set[int]] = {}
    for each in history.live:
        live.setdefault(each.partition, set()).add(each.offset)
    final: dict[int, set[int]] = {}
    for each in history.final:
        final.setdefault(each.partition, set()).add(each.offset)
    for partition, offsets in live.items():
        end = max(offsets)
        there = {each for each in final.get(partition, ()) if each <= end}
        if skipped := sorted(there - offsets):
            yield f"the live reader was never given {partition} at {skipped[0]} ({len(skipped)} records)"
        if gone := sorted(offsets - there):
            yield f"{partition} at {gone[0]} was read and is not there any more ({len(gone)} records)"


def _two_values(history: TransactionHistory) -> Iterable[str]:
    values: dict[tuple[int, int], bytes] = {}
    for each in (*history.everything, *history.final, *history.live):
        other = values.setdefault((each.partition, each.offset), each.value)
        if other != each.value:
            yield f"{each.partition} at {each.offset} is {other!r} and {each.value!r}"


def _not_stable(history: TransactionHistory) -> Iterable[str]:
    for (topic, partition), (stable, high) in history.ends.items():
        if stable != high:
            yield f"{topic}-{partition} stays at {stable}, and the high watermark is {high}"


def _fenced_by_nobody(history: TransactionHistory) -> Iterable[str]:
    """Whoever is told of another producer can name one, which asked for the transactional id after it had it."""
    for each in history.fenced:
        if not any(
            other.transactional_id == each.transactional_id
            and other.at > each.opened
            and other.since < each.at
            for other in history.opened
        ):
            yield f"{each.process} was told that another has {each.transactional_id}, and nobody had opened it"


def _offsets_go_back(history: TransactionHistory) -> Iterable[str]:
    reached: dict[int, int] = {}
    for seen in history.offsets:
        for partition, offset in seen.items():
            if offset < reached.get(partition, 0):
                yield f"the group had committed {partition} up to {reached[partition]}, and later {offset}"
            reached[partition] = offset
