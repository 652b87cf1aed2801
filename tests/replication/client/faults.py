"""What a node of a `FakeCluster` does wrong. A fault says whether it has dealt with the request itself."""

from __future__ import annotations

import random
from typing import Any

import trio

from insync.replication import wire
from insync.replication.core import messages as m
from insync.replication.core.errors import ErrorCode

from .fake_cluster import FakeNode, Fault


def not_leader(node: FakeNode, request: Any) -> bool:
    """Refuse a produce without saying who leads."""
    return fail_with(ErrorCode.NOT_LEADER_OR_FOLLOWER)(node, request)


def fail_with(code: ErrorCode, message: str = "") -> Fault:
    """Answer a produce or fetch with this code for every partition; nothing is appended."""

    def fault(node: FakeNode, request: Any) -> bool:
        asked = wire.decode_request(request.kind, request.body)
        answer: object
        if request.kind == m.Kind.PRODUCE:
            answer = m.ProduceResponse(
                partitions=[
                    m.ProduceResult(topic=p.topic, partition=p.partition, error=code, message=message)
                    for p in asked.partitions
                ]
            )
        else:
            answer = m.FetchResponse(
                partitions=[
                    m.FetchResult(topic=p.topic, partition=p.partition, error=code, message=message)
                    for p in asked.partitions
                ]
            )
        request.reply(wire.encode(answer))
        return True

    return fault


def drop(node: FakeNode, request: Any) -> bool:
    """Neither do nor answer it."""
    return True


def drop_after_append(node: FakeNode, request: Any) -> bool:
    """Append, but never answer."""
    node.append(request)
    node.cluster.appended()
    return True


def disconnect(node: FakeNode, request: Any) -> bool:
    """Break the connection before anything is done."""
    request.connection.abort("fault: disconnect")
    return True


def disconnect_after_append(node: FakeNode, request: Any) -> bool:
    """Append, then break the connection instead of answering."""
    node.append(request)
    node.cluster.appended()
    request.connection.abort("fault: disconnect after append")
    return True


def answer_after(seconds: float) -> Fault:
    """Serve it, later."""

    def fault(node: FakeNode, request: Any) -> bool:
        async def later() -> None:
            await trio.sleep(seconds)
            node.serve(request)

        node.cluster.nursery.start_soon(later)
        return True

    return fault


def answer_when(told: trio.Event) -> Fault:
    """Serve it once this is set."""

    def fault(node: FakeNode, request: Any) -> bool:
        async def later() -> None:
            await told.wait()
            node.serve(request)

        node.cluster.nursery.start_soon(later)
        return True

    return fault


def healthy(node: FakeNode, request: Any) -> bool:
    """No fault for this one."""
    return False


def random_faults(seed: int, *, rate: float, budget: int) -> Fault:
    """Faults of all sorts for produce requests, and leaders that move, at this rate until the budget is spent."""
    rng = random.Random(seed)
    left = [budget]
    choices: list[Fault] = [
        not_leader,
        fail_with(ErrorCode.NOT_ENOUGH_REPLICAS),
        fail_with(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND),
        fail_with(ErrorCode.REQUEST_TIMED_OUT),
        disconnect,
        disconnect_after_append,
        drop,
        drop_after_append,
        answer_after(0.02),
        _move_leaders,
        _move_leaders_after_append,
    ]

    def fault(node: FakeNode, request: Any) -> bool:
        if request.kind != m.Kind.PRODUCE or left[0] <= 0 or rng.random() >= rate:
            return False
        left[0] -= 1
        return rng.choice(choices)(node, request)

    return fault


def _move_leaders(node: FakeNode, request: Any) -> bool:
    cluster = node.cluster
    for topic, logs in cluster.topics.items():
        for number, log in enumerate(logs):
            cluster.move(topic, number, (log.leader + 1) % len(cluster.nodes))
    return False


def _move_leaders_after_append(node: FakeNode, request: Any) -> bool:
    disconnect_after_append(node, request)
    return not _move_leaders(node, request)


def later(told: trio.Event, fault: Fault) -> Fault:
    """Let this happen once `told` is set; a request that the fault leaves alone is served then."""

    def postponed(node: FakeNode, request: Any) -> bool:
        async def wait() -> None:
            await told.wait()
            if not fault(node, request):
                node.serve(request)

        node.cluster.nursery.start_soon(wait)
        return True

    return postponed
