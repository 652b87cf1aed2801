"""T11: what a group reads in transactions counts once in what they write, whoever stands still or is replaced.

Members of the group are `transactors`; everything else goes wrong as for other groups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs

from ...core.errors import ErrorCode
from ...core.groups import records as r
from ...core.groups.records import TopicPartition
from ...core.messages import groups as gm
from ..errors import Violated, require
from .run import Simulation, violation_of
from .transactors import Transaction, Transactions, Transactor

if TYPE_CHECKING:
    from .brokers import Broker
    from .clients import Client
    from .facts import Place
    from .oracle import Oracle


@attrs.frozen(kw_only=True)
class Result:
    """The outcome of a seed. `inputs`: how many records count in what was committed."""

    seed: int
    violation: Violated | None
    committed: int
    aborted: int
    inputs: int
    refused: int
    elections: int


class Outputs:
    """The outputs that committed transactions made of each input."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._by: dict[Place, dict[int, Transaction]] = {}
        self.inputs = 0

    def _is_exempt(self, group: str, partition: TopicPartition) -> bool:
        """Offsets that have expired, or are of another topic of that name, promise nothing."""
        names = {
            view.names[partition.topic_id] for view in self._oracle.views if partition.topic_id in view.names
        }
        keys = {r.OffsetKey(group, name, partition.partition) for name in names}
        return self._oracle.is_ambiguous(partition) or bool(keys & self._oracle.expired)

    def count(self, transaction: Transaction) -> None:
        """It is committed: nothing that it has read was counted before."""
        for partition, (first, end) in transaction.inputs.items():
            if self._is_exempt(transaction.group, partition):
                continue
            made = self._by.setdefault((transaction.group, partition.topic_id, partition.partition), {})
            twice = [(each, made[each].owner) for each in range(first, end) if each in made][:2]
            require(not twice, "T11", f"{transaction.owner} counts {partition} twice: {twice}")
            made |= dict.fromkeys(range(first, end), transaction)
            self.inputs += end - first

    def begins(self, client: Client, partition: TopicPartition, offset: int) -> None:
        """Every input below the offset at which a member begins was counted."""
        if self._is_exempt(client.group, partition):
            return
        made = self._by.get((client.group, partition.topic_id, partition.partition), {})
        missing = [each for each in range(offset) if each not in made][:2]
        require(not missing, "T11", f"{client.name} begins {partition} at {offset}, {missing} count nowhere")


class ExactlyOnce(Simulation):
    """A run whose members are transactors. Less goes wrong elsewhere, so that more of them are in a transaction."""

    kind = Transactor
    pause_between = 4.0

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.groups = ("g",)
        self.outputs = Outputs(self.oracle)
        self.decisions = Transactions(self)
        self.refused = 0
        """Transactions whose member the group had gone on without."""

    def take_offsets(
        self, request: gm.TxnOffsetCommitRequest, broker: Broker, answer: Callable[[Any], None]
    ) -> None:
        """A request arrives at a node: first its gate, then the group."""
        if self.decisions.takes(request):
            broker.ask(request, 5.0, -1, answer)
        else:
            answer(gm.CommitGroupOffsetsResponse(error=ErrorCode.INVALID_PRODUCER_EPOCH))


def run(seed: int) -> Result:
    """Play a seed."""
    simulation = ExactlyOnce(seed)
    violation = violation_of(simulation.play)
    decisions = simulation.decisions
    return Result(
        seed=seed,
        violation=violation,
        committed=decisions.committed,
        aborted=decisions.aborted,
        inputs=simulation.outputs.inputs,
        refused=simulation.refused,
        elections=simulation.elections,
    )
