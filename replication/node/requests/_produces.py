"""Requests that change logs, on their way to the broker; and the broker's answers on their way out."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import trio
from msgspec import structs

from ....transport import TransportError
from ...core import messages as m
from ...core.broker.effects import Reply
from ...core.broker.events import DeleteRecordsArrived, ProduceArrived
from ...core.control.quotas import PRODUCER
from ...core.errors import ErrorCode
from ...core.types import named
from ..coordination._coordination import Creation
from ..operations.counters import count_failed
from ..operations.inbound import Inbound
from ._batch_checks import CompressedChecks, Findings, is_compressed
from ._payloads import SharedPayload

if TYPE_CHECKING:
    from ..operations.counters import Counters
    from ..operations.quotas import ClientQuotas
    from ..ports import Driving


class Produces:
    """Decodes and encodes, counts what is appended, and has clients keep to their quotas."""

    def __init__(
        self, driver: Driving, quotas: ClientQuotas, counters: Counters, nursery: trio.Nursery
    ) -> None:
        self._driver = driver
        self._quotas = quotas
        self._counters = counters
        self._compressed = CompressedChecks(nursery, driver.settle)

    def serve(self, request: Inbound) -> None:
        """Take a produce request from the transport; its client's quota may have it wait."""
        message: m.ProduceRequest = request.message
        if self._quotas.is_limited:
            serve = partial(self._serve, request, message)
            if self._quotas.hold(PRODUCER, request, message.client_id, serve):
                return
        self._serve(request, message)

    def serve_deletion(self, request: Inbound) -> None:
        """Take a delete-records request from the transport."""
        message: m.DeleteRecordsRequest = request.message
        self._driver.step(DeleteRecordsArrived(request, message))

    def reply(self, effect: Reply) -> None:
        """Send what the broker says, with what the client's quota has to say."""
        response = effect.response
        if isinstance(effect.request, Creation):
            effect.request.answered(response)
            return
        request: Inbound = effect.request  # type: ignore[assignment]  # as `serve` has named it
        if isinstance(response, m.ProduceResponse):
            for result in response.partitions:
                if result.error != ErrorCode.NONE:
                    count_failed(self._counters.failed_produces, result.topic, self._driver.view)
            if request.throttle_ms:
                response = structs.replace(response, throttle_time_ms=request.throttle_ms)
        request.reply(response)

    def _serve(self, request: Inbound, message: m.ProduceRequest) -> None:
        try:
            payload = SharedPayload(request.payload)
        except (TransportError, OSError) as error:
            # The client has handed over ranges of its files, which it can truncate when it likes.
            request.payload.release()
            request.fail(ErrorCode.INVALID_REQUEST, f"failed to read the payload of the request: {error}")
            return
        if self._quotas.is_limited:
            self._quotas.take(PRODUCER, request, message.client_id, payload.size)
        take = partial(self._take, request, message, payload)
        self._compressed.proceed(request.connection, self._to_decompress(message, payload), take)

    def _to_decompress(self, message: m.ProduceRequest, payload: SharedPayload) -> dict[int, memoryview]:
        """The batches whose records are to be looked at although they are compressed, by their positions."""
        found: dict[int, memoryview] = {}
        position = 0
        for wanted in message.partitions:
            end = position + wanted.size
            if wanted.size < 0 or end > payload.size:
                break
            if is_compressed(payload.view, position, wanted.size):
                config = self._driver.view.config_of(wanted.topic)
                if config.validates_compressed and wanted.size <= config.max_message_bytes:
                    found[position] = payload.view[position:end]
            position = end
        return found

    def _take(
        self, request: Inbound, message: m.ProduceRequest, payload: SharedPayload, findings: Findings
    ) -> None:
        payload.findings = findings
        try:
            self._driver.step(named(ProduceArrived, (request, message, payload)))
            self._count(message, payload)
        finally:
            payload.let_go()

    def _count(self, message: m.ProduceRequest, payload: SharedPayload) -> None:
        counters, position = self._counters, 0
        for wanted in message.partitions:
            batches = payload.lent.get(position)
            if batches is not None and batches.taken:
                counters.bytes_in[wanted.topic] += wanted.size
                counters.messages_in[wanted.topic] += batches.infos[0].record_count
            position += max(0, wanted.size)
