"""The cluster's topics, as a coordinator knows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b

import attrs
import msgspec


class TopicInfo(msgspec.Struct, frozen=True):
    """One topic as it is now."""

    topic_id: str
    partitions: int


@attrs.frozen
class TopicsView:
    """All topics by name."""

    topics: Mapping[str, TopicInfo] = attrs.Factory(dict)
    names: Mapping[str, str] = attrs.field(init=False)
    """By topic id."""

    @names.default
    def _by_id(self) -> Mapping[str, str]:
        return {info.topic_id: name for name, info in self.topics.items()}

    def counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Partitions of those of them that exist."""
        return {name: self.topics[name].partitions for name in topics if name in self.topics}

    def digest(self, topics: Iterable[str]) -> int:
        """A signed 64-bit number that differs when a topic comes, goes, is made again or gets partitions.

        0 stands for no topics. Kafka keeps a hash of its own in the same place (KIP-1101) and computes it again
        when it takes over: a difference costs one rebalance.
        """
        found = sorted(name for name in topics if name in self.topics)
        if not found:
            return 0
        text = "\n".join(
            f"{name} {self.topics[name].topic_id} {self.topics[name].partitions}" for name in found
        )
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)
