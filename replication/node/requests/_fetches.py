"""Fetch requests on their way to the broker, and its answers on their way out."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import structs

from ....transport import Connection, turn
from ....transport.repeats import limited
from ...core import messages as m
from ...core.broker.effects import Answer, CloseConnection, Fail, Refuse
from ...core.broker.events import Cancelled, FetchArrived
from ...core.control.quotas import CONSUMER
from ...core.errors import ErrorCode
from ...core.types import named
from ..logs._maintenance_thread import clock_distance
from ..operations.counters import count_failed
from ..operations.inbound import Inbound
from ..service import Caller

if TYPE_CHECKING:
    from ...core.faces import WallClocks
    from ..operations.counters import Counters
    from ..operations.quotas import ClientQuotas
    from ..ports import Driving

log = limited(logging.getLogger("insync.node"))


class Fetches:
    """Decodes and encodes, counts what is sent, and has clients keep to their quotas."""

    def __init__(self, driver: Driving, quotas: ClientQuotas, counters: Counters, clocks: WallClocks) -> None:
        self._driver = driver
        self._quotas = quotas
        self._counters = counters
        self._clocks = clocks
        self._turn = turn()

    def serve(self, request: Inbound) -> None:
        """Take a request from the transport; its client's quota may have it wait."""
        message: m.FetchRequest = request.message
        if message.replica_id >= 0:
            if message.time_ms > 0 and request.peer.node_id == message.replica_id:
                self._clocks.heard(message.replica_id, clock_distance(message.time_ms))
        elif self._quotas.is_limited:
            serve = partial(self._serve, request, message)
            if self._quotas.hold(CONSUMER, request, message.client_id, serve):
                return
        self._serve(request, message)

    def _serve(self, request: Inbound, message: m.FetchRequest) -> None:
        self._driver.step(named(FetchArrived, (request.connection, request, message, request.peer)))
        if message.replica_id >= 0:
            # What this fetch proves may have acknowledged records, whose producers wait. All that has been noted in
            # this turn goes with their answers, also to the log writers.
            self._turn.hurry()
        if not request.is_answered:
            request.has_waited = True
            request.on_cancel(lambda: self._driver.step(Cancelled(request)))

    def answer(self, effect: Answer) -> None:
        """Send what the broker says, with what the client's quota has to say."""
        request: Inbound = effect.request  # type: ignore[assignment]  # as `serve` has named it
        response = effect.response
        message: m.FetchRequest = request.message
        self._account(request, message, response)
        if request.throttle_ms:
            response = structs.replace(response, throttle_time_ms=request.throttle_ms)
        parts: Sequence[Any] = effect.parts
        is_small = False
        if request.has_waited:
            # Small records that have just come go out from memory, which costs less than to read them. Whoever asks
            # for what was there already gets what the file holds: damage to it must come to light.
            there = [part.data for part in parts]
            is_small = None not in there
            if is_small:
                parts = there
            else:
                parts = [part if data is None else data for data, part in zip(there, parts, strict=True)]
        request.reply(response, parts)
        if is_small and message.replica_id >= 0 and isinstance(request.connection, Connection):
            # The follower begins to write while the next one's answer is made: a single record waits for both.
            request.connection.flush()

    def _account(self, request: Inbound, message: m.FetchRequest, response: m.FetchResponse) -> None:
        counters, total, is_client = self._counters, 0, message.replica_id < 0
        for result in response.partitions:
            total += result.size
            if result.error != ErrorCode.NONE:
                count_failed(counters.failed_fetches, result.topic, self._driver.view)
            if is_client and result.size:
                counters.bytes_out[result.topic] += result.size
        if is_client:
            self._quotas.take(CONSUMER, request, message.client_id, total)
        else:
            counters.replication_bytes_out += total


def fail(effect: Fail) -> None:
    assert isinstance(effect.request, Inbound)
    effect.request.fail(effect.code, effect.detail)


def refuse(effect: Refuse) -> None:
    assert isinstance(effect.request, Inbound)
    effect.request.refuse(effect.detail)


def close_connection(effect: CloseConnection) -> None:
    assert isinstance(effect.connection, Connection | Caller)
    hang_up(effect.connection, effect.reason)


def hang_up(connection: Connection | Caller, reason: str) -> None:
    """End a connection; if a gateway cannot end that of its client, nobody else suffers for that."""
    try:
        connection.abort(reason)
    except Exception:
        log.exception("a gateway raised while it closed a connection")
