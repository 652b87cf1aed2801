"""Cycles among transactions of a log: some may be, others may not (Adya, 1999; Jepsen's tests of Kafka).

A transaction's write is a record; its reads are the records that its worker was given before it asked for the
commit. Edges: write-write, by the order of offsets of a partition (`ww`); write-read, from the transaction of a
record to those that read it (`wr`).

    G0    a cycle of ww: two transactions write to two partitions in opposite orders
    G1c   a cycle of wr: each of them read what the other wrote
    against time   a cycle of what must have come before what (see `against_time`)

Kafka's transactions isolate no writes: records of two that are open at once mix in the logs. So G0 may be, as may a
cycle of ww and wr together, and both are counted. G1c may not: a record is read after its transaction's commit, and
before the commit of the transaction that reads it. Knows nothing of insync's code.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import attrs


@attrs.frozen
class Done:
    """A committed transaction. reads: transactions whose records it was given. began, ended: as its worker saw it.

    ended: infinity if its worker was not told of the commit.
    """

    name: str
    reads: frozenset[str]
    began: float
    ended: float = float("inf")


Logs = Mapping[int, Sequence[tuple[int, str]]]
"""By partition: offset and transaction of each record that was committed, by rising offset."""


def write_cycle(logs: Logs) -> list[str]:
    """G0: names of transactions, the first again at the end; empty if there is none."""
    return _cycle(_written(logs))


def read_cycle(done: Iterable[Done]) -> list[str]:
    """G1c, of reads alone."""
    return _cycle(_read(done))


def mixed_cycle(done: Iterable[Done], logs: Logs) -> list[str]:
    """G1c in the wide sense: of writes and reads together."""
    return _cycle(itertools.chain(_written(logs), _read(done)))


def against_time(done: Sequence[Done], logs: Logs) -> list[str]:
    """A cycle of events, each of which came before the next one; there can be none.

    A transaction begins before each of its records is appended, and these come before its commit. The records of a
    partition come one after the other. A commit comes before the commits of all that read its records. A
    transaction that began when a worker had been told of another's commit began after that commit.
    """
    names = {each.name for each in done}
    edges: list[tuple[str, str]] = []
    for partition, records in logs.items():
        at = [(f"{name} at {partition}:{offset}", name) for offset, name in records if name in names]
        edges += [(one, other) for (one, _), (other, _) in pairwise(at)]
        for record, name in at:
            edges += [(f"begin of {name}", record), (record, f"commit of {name}")]
    for each in done:
        edges.append((f"begin of {each.name}", f"commit of {each.name}"))
        edges += [
            (f"commit of {name}", f"commit of {each.name}") for name in each.reads & names - {each.name}
        ]
    return _cycle(itertools.chain(edges, _by_clock(done)))


def _by_clock(done: Sequence[Done]) -> Iterable[tuple[str, str]]:
    """A chain of moments: an end lies before its moment, a begin behind. Of one time the begin comes first."""
    ends = [(each.ended, 1, each.name) for each in done if each.ended != float("inf")]
    moments = sorted([*ends, *((each.began, 0, each.name) for each in done)])
    for number, (_, is_end, name) in enumerate(moments):
        if is_end:
            yield f"commit of {name}", f"moment {number}"
        else:
            yield f"moment {number}", f"begin of {name}"
    yield from pairwise(f"moment {number}" for number in range(len(moments)))


def _written(logs: Logs) -> Iterable[tuple[str, str]]:
    for records in logs.values():
        for (_, one), (_, other) in pairwise(records):
            if one != other:
                yield one, other


def _read(done: Iterable[Done]) -> Iterable[tuple[str, str]]:
    for each in done:
        for name in each.reads:
            if name != each.name:
                yield name, each.name


def _cycle(edges: Iterable[tuple[str, str]]) -> list[str]:
    graph: TopologicalSorter[Hashable] = TopologicalSorter()
    for before, after in edges:
        graph.add(after, before)
    try:
        graph.prepare()
    except CycleError as error:
        # Each is a predecessor of the next one.
        return list(error.args[1])
    return []
