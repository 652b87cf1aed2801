"""A leader asked to end a transaction that hangs: it asks the coordinators first, and writes an abort."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from insync.replication.core.broker.coordination.aborting import Aborting
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import Kind, PartitionName
from insync.replication.core.messages import transactions as tm
from insync.replication.core.types import PartitionId, ProducerEntry

A, B = 1, 2
AT = PartitionName(topic="t", partition=0)
ASKED = tm.AbortTransactionRequest(topic="t", partition=0, producer_id=7, producer_epoch=3, start_offset=20)
HELD_ELSEWHERE = tm.TransactionDescription(
    transactional_id="x", status="ONGOING", producer_id=7, producer_epoch=3, partitions=[AT]
)


class Leader:
    """Node A, where producer 7 has a transaction open; A and B lead a partition of coordinators each.

    listed, described: what both coordinators answer, None for no answer.
    """

    def __init__(self, listed: object = None, described: object = None) -> None:
        self.listed, self.described = listed, described
        entry = ProducerEntry(7, 3, (), coordinator_epoch=5, first_offset=20)
        self.producers = {7: entry}
        replica = SimpleNamespace(
            leader=object(), hint=lambda: (A, 9), log=SimpleNamespace(producers=self.producers)
        )
        self.replicas: dict[PartitionId, Any] = {PartitionId("t", 0): replica}
        state = "__transaction_state"
        view = SimpleNamespace(
            topics={state: SimpleNamespace(partitions=2)},
            partitions={
                PartitionId(state, number): SimpleNamespace(record=SimpleNamespace(leader=node))
                for number, node in ((0, A), (1, B))
            },
        )
        self.context: Any = SimpleNamespace(
            node_id=A,
            view=view,
            replicas=self.replicas,
            missing_error=lambda partition: ErrorCode.NOT_LEADER_OR_FOLLOWER,
        )
        self.asked: list[tuple[int, object]] = []
        self.later: list[Callable[[], None]] = []
        self.marked: list[tuple[int, tm.TransactionMarkers, PartitionName]] = []
        self.told: list[tm.AbortTransactionResponse] = []
        peers: Any = SimpleNamespace(ask=self._ask_other)
        self.machine = Aborting(
            self.context, peers, mark=self._mark, serve=self._serve, later=self.later.append
        )

    def _ask_other(
        self,
        node: int,
        kind: Kind,
        request: object,
        timeout: float,
        *,
        answered: Callable[[Any], None],
        failed: Callable[[str], None],
    ) -> None:
        self.asked.append((node, request))
        answer = self._answer(request)
        if answer is None:
            failed("for the test")
        else:
            answered(answer)

    def _serve(self, request: object, answered: Callable[[Any], None]) -> None:
        self.asked.append((A, request))
        answered(self._answer(request))

    def _answer(self, request: object) -> Any:
        return self.listed if isinstance(request, tm.ListTransactionsRequest) else self.described

    def _mark(
        self,
        epoch: int,
        markers: tm.TransactionMarkers,
        at: PartitionName,
        written: Callable[[ErrorCode], None],
    ) -> None:
        self.marked.append((epoch, markers, at))
        written(ErrorCode.NONE)

    def take(self, message: tm.AbortTransactionRequest = ASKED) -> tm.AbortTransactionResponse | None:
        """The answer, as far as there is one in this turn."""
        self.machine.take(message, self.told.append)
        return self.told[-1] if self.told else None

    def end_turn(self) -> tm.AbortTransactionResponse:
        for each in self.later:
            each()
        (answer,) = self.told
        return answer


def one_listed() -> tm.ListTransactionsResponse:
    listing = tm.TransactionListing(transactional_id="x", producer_id=7, status="ONGOING")
    return tm.ListTransactionsResponse(transactions=[listing])


def test_a_transaction_that_no_coordinator_holds_is_aborted() -> None:
    leader = Leader(tm.ListTransactionsResponse())
    assert leader.take() is None, "it is written at the end of the turn"
    assert [(node, request.partitions) for node, request in leader.asked] == [(A, [0]), (B, [1])]  # type: ignore[attr-defined]
    assert leader.end_turn().error == ErrorCode.NONE
    ((epoch, markers, at),) = leader.marked
    assert (epoch, at) == (5, AT), "the epoch of the last marker, which shuts no coordinator out"
    assert (markers.producer_id, markers.producer_epoch, markers.committed) == (7, 3, False)


def test_what_a_coordinator_holds_is_its_to_end() -> None:
    leader = Leader(one_listed(), tm.DescribeTransactionsResponse(transactions=[HELD_ELSEWHERE]))
    answer = leader.take()
    assert answer is not None and answer.error == ErrorCode.INVALID_TXN_STATE
    assert not leader.marked and not leader.later


def _gone(names: list[tm.TransactionDescription]) -> tm.DescribeTransactionsResponse:
    return tm.DescribeTransactionsResponse(transactions=names)


@pytest.mark.parametrize(
    ("listed", "described"),
    [
        (None, None),
        (tm.ListTransactionsResponse(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), None),
        (one_listed(), None),
        (one_listed(), tm.DescribeTransactionsResponse(error=ErrorCode.NOT_COORDINATOR)),
        (
            one_listed(),
            _gone([tm.TransactionDescription(transactional_id="x", error=ErrorCode.NOT_COORDINATOR)]),
        ),
    ],
)
def test_nothing_is_ended_while_a_coordinator_has_not_said_whether_it_holds_it(
    listed: object, described: object
) -> None:
    leader = Leader(listed, described)
    answer = leader.take()
    assert answer is not None
    assert (answer.error, answer.leader, answer.leader_epoch) == (
        ErrorCode.COORDINATOR_NOT_AVAILABLE, A, 9,
    )  # fmt: skip
    assert not leader.marked and not leader.later


def test_a_coordinator_without_a_leader_is_one_that_does_not_say() -> None:
    leader = Leader(tm.ListTransactionsResponse())
    leader.context.view.partitions[PartitionId("__transaction_state", 1)].record.leader = -1
    answer = leader.take()
    assert answer is not None and answer.error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not leader.asked


def test_a_transaction_that_ends_while_coordinators_are_asked_is_left_alone() -> None:
    """Its producer has begun another one by then."""
    leader = Leader(tm.ListTransactionsResponse())
    leader.take()
    leader.producers[7] = ProducerEntry(7, 3, (), coordinator_epoch=5, first_offset=30)
    assert leader.end_turn().error == ErrorCode.INVALID_TXN_STATE
    assert not leader.marked


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_node_without_the_partition_says_so(when: str) -> None:
    leader = Leader(tm.ListTransactionsResponse())
    if when == "meanwhile":
        leader.take()
    leader.replicas.clear()
    answer = leader.take() if when == "before" else leader.end_turn()
    assert answer is not None and answer.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not leader.marked
