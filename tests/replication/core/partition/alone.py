"""A replica without a broker around it: each step ends with the list of its calls and effects."""

from __future__ import annotations

from insync.replication.core.partition import effects as fx
from insync.replication.core.partition import events as ev
from insync.replication.core.partition.parts import Parts
from insync.replication.core.partition.replica import Replica, ReplicaSettings
from insync.replication.core.types import PartitionId

PARTITION = PartitionId("t", 0)
WAKE, STOP = "wake", "stop"
"""The calls of `Parts` that carry nothing but their partition."""


class Alone(Replica):
    """`tell` and `ask` are `step` and `fetch`, with all that the replica asked for meanwhile, in order."""

    def __init__(self, node_id: int, incarnation: int, settings: ReplicaSettings | None = None) -> None:
        self.noted: list[object] = []
        super().__init__(PARTITION, node_id, incarnation, self._parts(), settings)

    def tell(self, event: ev.Event, now: float) -> list[object]:
        self.step(event, now)
        return self.taken()

    def ask(self, question: ev.Fetch, now: float) -> tuple[fx.FetchAnswer, list[object]]:
        answer = self.fetch(question, now)
        return answer, self.taken()

    def taken(self) -> list[object]:
        """The calls and effects since the last time."""
        taken, self.noted = self.noted, []
        return taken

    def _parts(self) -> Parts:
        def note(told: object) -> None:
            self.noted.append(told)

        def of_partition(partition: PartitionId, told: object) -> None:
            assert partition == PARTITION
            note(told)

        return Parts(
            emit=note,
            replied=of_partition,
            deletion_replied=of_partition,
            wake=lambda partition: of_partition(partition, WAKE),
            want=of_partition,
            stop=lambda partition: of_partition(partition, STOP),
            truncate=note,
            propose=of_partition,
            read_again=note,
            retire=of_partition,
            add=of_partition,
            admitted=of_partition,
        )
