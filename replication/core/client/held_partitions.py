"""The partitions that a member has, each on its way from being given to being let go."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

import attrs

from ..groups.records import TopicPartition


class Stage(enum.Enum):
    UNKNOWN = enum.auto()
    """Its position is being asked for."""
    READY = enum.auto()
    """It waits for the `assigned` callback."""
    TOLD = enum.auto()
    """The `assigned` callback is running."""
    SERVED = enum.auto()
    """Its records are handed out."""
    REVOKING = enum.auto()
    """It is to be let go: nothing is handed out."""


@attrs.define(eq=False)
class Held:
    """`start`: the committed offset, None if there is none. `handed`: the offset after what the caller was given;
    `consumed`: after what it is done with; `committed`: what is committed as far as this process knows.
    """

    stage: Stage = Stage.UNKNOWN
    start: int | None = None
    handed: int | None = None
    consumed: int | None = None
    committed: int | None = None
    is_told: bool = False
    """Whether the caller has heard of it."""


class HeldPartitions:
    """The partitions and their stages. `lost` ones are held no more; their callback is still to come."""

    def __init__(self) -> None:
        self._held: dict[TopicPartition, Held] = {}
        self.names: dict[str, str] = {}
        self.lost: frozenset[TopicPartition] = frozenset()

    @property
    def all(self) -> set[TopicPartition]:
        """The partitions that the coordinator must not give to others."""
        return set(self._held)

    def _in(self, stage: Stage) -> set[TopicPartition]:
        return {each for each, held in self._held.items() if held.stage is stage}

    @property
    def unknown(self) -> dict[TopicPartition, Held]:
        """Those whose position must be asked for, and whose topic's name is known."""
        return {
            each: held
            for each, held in sorted(self._held.items())
            if held.stage is Stage.UNKNOWN and each.topic_id in self.names
        }

    @property
    def ready(self) -> set[TopicPartition]:
        return self._in(Stage.READY)

    @property
    def revoking(self) -> set[TopicPartition]:
        return self._in(Stage.REVOKING)

    def assign(self, told: set[TopicPartition]) -> tuple[frozenset[TopicPartition], bool]:
        """The coordinator's word on what is to be held.

        Returns what must not be handed out any more, and whether something is let go already.
        """
        withheld = set()
        released = False
        for partition, held in list(self._held.items()):
            if partition in told or held.stage is Stage.REVOKING:
                continue
            if held.is_told:
                withheld.add(partition)
                held.stage = Stage.REVOKING
            else:
                # Its caller has never heard of it.
                del self._held[partition]
                released = True
        for partition in told - self._held.keys():
            # Given again or for the first time: it starts at what is committed by now, not where it was left.
            self._held[partition] = Held()
        return frozenset(withheld), released

    def found(self, held: Held, offset: int | None) -> None:
        """The committed offset of a partition that was asked for as `held`.

        If the partition has come and gone since, it is held as another: what is committed may have changed.
        """
        held.stage, held.start, held.committed = Stage.READY, offset, offset

    def tell(self, partitions: Iterable[TopicPartition]) -> None:
        """Their `assigned` callback begins."""
        for partition in partitions:
            self._held[partition].stage, self._held[partition].is_told = Stage.TOLD, True

    def serve(self, partitions: Iterable[TopicPartition]) -> list[tuple[TopicPartition, int | None]]:
        """Their callback is done: where to begin, for those that are still to be held."""
        begun = []
        for partition in sorted(partitions):
            held = self._held.get(partition)
            if held is not None and held.stage is Stage.TOLD:
                held.stage = Stage.SERVED
                begun.append((partition, held.start))
        return begun

    def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """Their callback is done: they are let go."""
        for partition in partitions:
            held = self._held.get(partition)
            if held is not None and held.stage is Stage.REVOKING:
                del self._held[partition]
        self.lost -= frozenset(partitions)

    def lose(self) -> frozenset[TopicPartition]:
        """All are gone at once; returns what was handed out."""
        told = frozenset(each for each, held in self._held.items() if held.is_told)
        self.lost |= told
        self._held.clear()
        return told

    def hand_out(self, handed: Mapping[TopicPartition, int]) -> None:
        """Note how far the caller was given records, of partitions that it may still be given."""
        for partition, offset in handed.items():
            held = self._held.get(partition)
            if held is not None and held.is_told:
                held.handed = offset

    def consume(self) -> None:
        """The caller is done with all that it was given."""
        for held in self._held.values():
            held.consumed = held.handed

    def done_with(self, offsets: Mapping[TopicPartition, int]) -> None:
        """The caller's own word on what it is done with; what follows by itself must not take it back."""
        for partition, offset in offsets.items():
            if partition in self._held:
                self._held[partition].consumed = offset

    def uncommitted(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """The offsets that have been consumed and not committed."""
        found = {}
        for partition in self._held if partitions is None else partitions:
            held = self._held[partition]
            if held.consumed is not None and held.consumed != held.committed:
                found[partition] = held.consumed
        return found

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        for partition, offset in offsets.items():
            if partition in self._held:
                self._held[partition].committed = offset

    def committed_of(self, partition: TopicPartition) -> int | None:
        """The committed offset, as far as this process knows."""
        held = self._held.get(partition)
        return None if held is None else held.committed

    def start_of(self, partition: TopicPartition) -> int | None:
        """The committed offset when the partition was given; None: nothing was committed."""
        held = self._held.get(partition)
        return None if held is None else held.start

    def may_commit(self, partition: TopicPartition) -> bool:
        """Whether it is this member's to commit: also while it is being let go."""
        held = self._held.get(partition)
        return held is not None and held.is_told
