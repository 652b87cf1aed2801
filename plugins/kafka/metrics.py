"""A listener's counts: requests by API and error, their times and bytes, connections, logins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from insync.replication.node.service import Metric

from .core.failures import NONE
from .protocol.apis import Api

_LISTENER = ("listener",)
_API = ("listener", "api")


class Counts:
    """Of one listener, since it was opened. listener: its name; connections: how many there are now."""

    def __init__(self, listener: str, connections: Callable[[], int]) -> None:
        self._listener = listener
        self._connections = connections
        self._requests: Counter[tuple[int, str]] = Counter()
        self._seconds: Counter[int] = Counter()
        self._bytes_in: Counter[int] = Counter()
        self._bytes_out: Counter[int] = Counter()
        self._logins: Counter[str] = Counter()

    def answered(self, api: int, error: str, seconds: float, bytes_in: int, bytes_out: int) -> None:
        """A request has its answer; of Produce and Fetch what they waited for is part of the time."""
        self._requests[api, error] += 1
        self._seconds[api] += seconds  # type: ignore[assignment]  # a Counter takes any number
        self._bytes_in[api] += bytes_in
        self._bytes_out[api] += bytes_out

    def login(self, *, succeeded: bool) -> None:
        """Somebody has proved who it is, or has not."""
        self._logins["succeeded" if succeeded else "failed"] += 1

    def metrics(self) -> Iterator[Metric]:
        """See `NodeService.tell_metrics`."""
        here = self._listener
        yield Metric(
            "insync_kafka_requests",
            "counter",
            "Requests of Kafka's clients that are answered, by the first error in the answer.",
            ("listener", "api", "error"),
            {(here, _name(api), error): count for (api, error), count in self._requests.items()},
        )
        for name, text, counts in (
            ("insync_kafka_request_seconds", "Seconds from requests to their answers.", self._seconds),
            ("insync_kafka_bytes_in", "Bytes of requests of Kafka's clients.", self._bytes_in),
            ("insync_kafka_bytes_out", "Bytes of answers to Kafka's clients.", self._bytes_out),
        ):
            yield Metric(
                name, "counter", text, _API, {(here, _name(api)): value for api, value in counts.items()}
            )
        text = "Connections of Kafka's clients."
        yield Metric("insync_kafka_connections", "gauge", text, _LISTENER, {(here,): self._connections()})
        text = "Logins of Kafka's clients."
        logins: dict[tuple[str, ...], float] = {(here, how): n for how, n in self._logins.items()}
        yield Metric("insync_kafka_logins", "counter", text, ("listener", "outcome"), logins)


def _name(api: int) -> str:
    return Api(api).name.lower()


__all__ = ["NONE", "Counts"]
