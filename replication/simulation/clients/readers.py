"""A consumer that goes on from where it stopped, and says what it read last and under whom (KIP-320)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ...core.errors import ErrorCode
from ...core.messages import FetchPartition, FetchResult
from ...core.types import NO_EPOCH, PartitionId
from ..driver.fetches import BATCH_SIZE
from ..errors import require
from ..world.disk import LEFT_OUT, Stored
from ..world.node import Host
from .plain import GIVES_UP

if TYPE_CHECKING:
    from ..world.cluster import Cluster

NAMES_TOPIC = 0.7
WRONG = 0.02
"""How often it believes in another leader epoch than the one it was told of, or asks past the end."""


class Reader:
    """Reads one batch after the other from whoever leads, or believes so.

    Its batches were committed, so nobody who leads by the store's record may tell it that their ways have parted.
    """

    def __init__(self, cluster: Cluster, partition: PartitionId) -> None:
        self._cluster = cluster
        self._partition = partition
        self._facts = cluster.oracle.partitions[partition]
        self._read_of = self._facts
        """Of which topic of the name the last batch was."""
        self._position = 0
        self._last_epoch = NO_EPOCH
        self._leader_epoch = NO_EPOCH
        self._question = 0

    def turn(self) -> None:
        cluster = self._cluster
        if cluster.calm or (self._facts.gone and cluster.chance(GIVES_UP)):
            return
        hosts = [h for h in cluster.hosts_of(self._partition) if h.node.up and h.replica is not None]
        candidates = cluster.leaders_of(self._partition) or hosts
        if candidates:
            host = candidates[int(cluster.random.random() * len(candidates))]
            self._question = cluster.new_id()
            asks = self._asks(host)
            cluster.send(0, host.node, partial(self._arrive, host, asks, self._question))
        cluster.later(0.1 + 0.9 * cluster.random.random(), self.turn)

    def _asks(self, host: Host) -> FetchPartition:
        dice = self._cluster.random
        beyond = dice.random() < WRONG
        epoch = self._leader_epoch + (dice.choice((-1, 1)) if dice.random() < WRONG else 0)
        return FetchPartition(
            topic=self._partition.topic,
            partition=self._partition.partition,
            fetch_offset=self._position + 1000 * beyond,
            max_bytes=1 + int(dice.random() * 4 * BATCH_SIZE),
            leader_epoch=max(epoch, NO_EPOCH),
            last_fetched_epoch=NO_EPOCH if beyond else self._last_epoch,
            topic_id=host.facts.topic_id if dice.random() < NAMES_TOPIC else "",
        )

    def _arrive(self, host: Host, asks: FetchPartition, question: int) -> None:
        self._cluster.serve(host, asks, partial(self._answered, host, question))

    def _answered(self, host: Host, question: int, answer: FetchResult, batches: tuple[Stored, ...]) -> None:
        """S11: what was read stays read, as long as nobody elects uncleanly."""
        same = host.facts is self._read_of and question == self._question
        if answer.diverging is not None and same and self._cluster.oracle.is_current(host):
            require(
                host.facts.unclean,
                "S11",
                "{} reports divergence at {}; the reader stands at offset {} after leader epoch {}",
                host.name,
                answer.diverging,
                self._position,
                self._last_epoch,
            )
        self._cluster.send(host.node.id, None, partial(self._take, host, question, answer, batches))

    def _take(self, host: Host, question: int, answer: FetchResult, batches: tuple[Stored, ...]) -> None:
        if question != self._question:
            return
        self._leader_epoch = answer.leader_epoch
        if answer.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._position, self._last_epoch = max(answer.log_start_offset, 0), NO_EPOCH
        elif answer.diverging is not None:
            self._position, self._last_epoch = answer.diverging.end_offset, NO_EPOCH
        told = [batch.meta for batch in batches if batch.state != LEFT_OUT]
        if told:
            self._position, self._last_epoch = told[-1].next_offset, told[-1].leader_epoch
            self._read_of = host.facts
