"""The treatment of a record that fails. Pure: no clock, no I/O."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import attrs

from ..client.consumer import ConsumerRecord
from ..client.errors import DeserializationError
from ..core.types import PartitionId

TOPIC, PARTITION, OFFSET, ERROR = "dlt-topic", "dlt-partition", "dlt-offset", "dlt-error"
"""Headers of a record that has failed: where it stood first, and why it failed last."""
_MOST_SAID = 1000

Headers = tuple[tuple[str, bytes | None], ...]


class Verdict(enum.Enum):
    """The fate of a record whose handler has failed too often, everywhere."""

    DEAD_LETTER = "dead_letter"
    SKIP = "skip"
    STOP = "stop"


@attrs.frozen(kw_only=True)
class Failures:
    """`retries` attempts in place after the first, each after twice the pause of the one before.

    Then the next topic of `retry_topics` (names, with the delay in seconds of each), and in the end `verdict`.
    """

    retries: int
    backoff: float
    backoff_max: float
    verdict: Verdict
    dead_letter: str = ""
    retry_topics: Mapping[str, float] = attrs.Factory(dict)
    no_retry: tuple[type[Exception], ...] = ()

    def pause(self, attempts: int, error: Exception) -> float | None:
        """Seconds before the next attempt in place, after this many failures; None: no more attempts."""
        if attempts > self.retries or not self.may_pass(error):
            return None
        return min(self.backoff_max, self.backoff * 2 ** min(attempts - 1, 30))

    def may_pass(self, error: Exception) -> bool:
        """Whether another attempt may succeed."""
        return not isinstance(error, (DeserializationError, *self.no_retry))

    def topic_after(self, record: ConsumerRecord, error: Exception) -> str:
        """Where a record goes that has failed too often in its topic; empty: nowhere."""
        if self.retry_topics and self.may_pass(error):
            chain = list(self.retry_topics)
            index = chain.index(record.topic) + 1 if record.topic in self.retry_topics else 0
            if index < len(chain):
                return chain[index]
        return self.dead_letter if self.verdict is Verdict.DEAD_LETTER else ""

    def due(self, record: ConsumerRecord) -> float:
        """When a record may be handled, in seconds since 1970; 0: at once."""
        delay = self.retry_topics.get(record.topic)
        return 0.0 if delay is None else record.timestamp_ms / 1000 + delay


def headers_of(record: ConsumerRecord, error: Exception) -> Headers:
    """A record's headers, and those that tell where it stood first and why it has failed."""
    own = (TOPIC, PARTITION, OFFSET, ERROR)
    before = {name: value for name, value in record.headers if name in own}
    return (
        *(each for each in record.headers if each[0] not in own),
        (TOPIC, before.get(TOPIC, record.topic.encode())),
        (PARTITION, before.get(PARTITION, b"%d" % record.partition)),
        (OFFSET, before.get(OFFSET, b"%d" % record.offset)),
        (ERROR, repr(error)[:_MOST_SAID].encode("utf-8", "replace")),
    )


def place_of(record: ConsumerRecord) -> str:
    """For messages."""
    return f"{PartitionId(record.topic, record.partition)} offset {record.offset}"
