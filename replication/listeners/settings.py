"""The settings of a listener."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from ..client._settings import ClientSettings, ConsumerSettings, make_settings
from ..client.errors import InvalidSettingError
from ._failures import Failures, Verdict
from ._progress import AckMode


@attrs.frozen(kw_only=True)
class ListenerSettings:
    """Durations in milliseconds.

    ack_mode: When offsets are committed.
    ack_count, ack_time_ms: For the modes that count records or time.
    concurrency: Handlers at work at a time.
    order: "partition": records of a partition are handled one after the other. "key": those of one key are, and
      different keys of a partition may be handled at a time.
    retries: Attempts in place after the first; the partition (or key) waits meanwhile, others go on.
    retry_backoff_ms, retry_backoff_max_ms: The pause before an attempt in place; it doubles with each.
    no_retry: Exceptions that would occur again at another attempt.
    retry_topics: Names of topics, each with a delay. A record that has failed in place goes to the first one, and
      is handled from there when so long has passed; then to the next. Nothing waits for it: its order is lost.
    on_failure: What becomes of a record in the end: "stop" (raise from `run`), "skip", or "dead_letter" (which
      `dead_letter` implies).
    dead_letter: The topic to which records go that fail; headers say whence, and why.
    transactional_id_prefix: Handlers get a producer, and what they send with it counts together with the offsets of
      the records that they were given, or not at all. Each process needs a prefix of its own, the same one when it
      is started again.
    """

    ack_mode: AckMode = AckMode.BATCH
    ack_count: int = 100
    ack_time_ms: int = 5000
    concurrency: int = 1
    order: Literal["partition", "key"] = "partition"
    retries: int = 3
    retry_backoff_ms: int = 500
    retry_backoff_max_ms: int = 30_000
    no_retry: tuple[type[Exception], ...] = ()
    retry_topics: Mapping[str, int] = attrs.Factory(dict)
    on_failure: Literal["stop", "skip", "dead_letter"] = "stop"
    dead_letter: str = ""
    transactional_id_prefix: str = ""

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.ack_mode, AckMode):
            raise InvalidSettingError(f"ack_mode is {self.ack_mode!r}; it must be an AckMode")
        for name, least in _LEAST.items():
            _check_number(name, getattr(self, name), least)
        for name in ("dead_letter", "transactional_id_prefix"):
            if not isinstance(getattr(self, name), str):
                raise InvalidSettingError(f"{name} is {getattr(self, name)!r}; it must be a string")
        if self.order not in ("partition", "key"):
            raise InvalidSettingError(f'order is {self.order!r}; it must be "partition" or "key"')
        verdicts = [each.value for each in Verdict]
        if self.on_failure not in verdicts or (self.on_failure == "dead_letter") > bool(self.dead_letter):
            raise InvalidSettingError(
                f'on_failure is {self.on_failure!r}; it must be "stop", "skip", or "dead_letter" with a topic'
            )
        if not isinstance(self.retry_topics, Mapping):
            raise InvalidSettingError(
                f"retry_topics is {self.retry_topics!r}; give names of topics, each with a delay in ms"
            )
        for topic, delay in self.retry_topics.items():
            _check_number(f"retry_topics[{topic!r}]", delay, 0)
        if not isinstance(self.no_retry, tuple) or not all(
            isinstance(each, type) and issubclass(each, Exception) for each in self.no_retry
        ):
            raise InvalidSettingError(f"no_retry is {self.no_retry!r}; it must be a tuple of exceptions")
        self._check_transactions()

    def _check_transactions(self) -> None:
        if not self.transactional_id_prefix:
            return
        if self.ack_mode not in (AckMode.BATCH, AckMode.RECORD):
            raise InvalidSettingError(
                f"ack_mode is {self.ack_mode}; with transactional_id_prefix it must be BATCH (one each "
                "batch) or RECORD (one each record)"
            )
        if self.order == "key":
            raise InvalidSettingError(
                'order is "key"; with transactional_id_prefix it must be "partition": a transaction commits one '
                "offset of a partition"
            )

    @property
    def failures(self) -> Failures:
        """The treatment of records that fail."""
        return Failures(
            retries=self.retries,
            backoff=self.retry_backoff_ms / 1000,
            backoff_max=self.retry_backoff_max_ms / 1000,
            verdict=Verdict.DEAD_LETTER if self.dead_letter else Verdict(self.on_failure),
            dead_letter=self.dead_letter,
            retry_topics={topic: delay / 1000 for topic, delay in self.retry_topics.items()},
            no_retry=self.no_retry,
        )


_LEAST = {
    "ack_count": 1,
    "ack_time_ms": 0,
    "concurrency": 1,
    "retries": 0,
    "retry_backoff_ms": 0,
    "retry_backoff_max_ms": 0,
}


def _check_number(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidSettingError(f"{name} is {value!r}; it must be a whole number of at least {least}")


def split(
    options: dict[str, Any], settings: ListenerSettings | None
) -> tuple[ListenerSettings, ConsumerSettings, dict[str, Any]]:
    """The settings of a listener, of its consumer, and what its producers share with that.

    Raises `InvalidSettingError`.
    """
    names = {field.name for field in attrs.fields(ListenerSettings)}
    own = {name: value for name, value in options.items() if name in names}
    rest = {name: value for name, value in options.items() if name not in names}
    if settings is not None and not isinstance(settings, ListenerSettings):
        raise InvalidSettingError(f"settings is a {type(settings).__name__}; give ListenerSettings(...)")
    if rest.get("enable_auto_commit"):
        raise InvalidSettingError("enable_auto_commit is True; a listener commits by its ack_mode")
    chosen = attrs.evolve(settings if settings is not None else ListenerSettings(), **own)
    rest.setdefault("auto_offset_reset", "earliest")
    if chosen.transactional_id_prefix:
        rest.setdefault("isolation_level", "read_committed")
    consumer = make_settings(ConsumerSettings, {**rest, "enable_auto_commit": False})
    shared = {field.name for field in attrs.fields(ClientSettings)}
    return chosen, consumer, {name: value for name, value in rest.items() if name in shared}
