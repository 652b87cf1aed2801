"""Producer ids: who a producer is to the nodes, and at which epoch it starts over (KIP-98, KIP-360)."""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from ....transport import TransportError
from ...core import messages as m
from ...core.errors import ErrorCode
from .._settings import ProducerSettings
from ..connection._cluster import Cluster
from ..errors import ClientError, ProducerFencedError, error_for
from ._batch import ProducerIdentity

_log = logging.getLogger("insync.client")
_GREATEST_EPOCH = 2**15 - 1


class Identities:
    """Asks for identities when told to, and wakes the sender when there is one.

    Partitions move to `current` one by one, each when nothing of it is in flight.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        cluster: Cluster,
        nursery: trio.Nursery,
        wake: Callable[[float], None],
    ) -> None:
        self.fenced: ProducerFencedError | None = None
        """Set once another producer has the name."""
        self.current: ProducerIdentity | None = None
        self._settings = settings
        self._cluster = cluster
        self._nursery = nursery
        self._wake = wake
        self._asking = False
        self._failures = 0

    def want(self) -> None:
        """Get a producer id, or the next epoch of the one that we have."""
        if not self._asking:
            self._asking = True
            self._nursery.start_soon(self._ask)

    async def _ask(self) -> None:
        name = self._settings.producer_name
        request = m.InitProducerIdRequest(identity=name)
        if self.current is not None and (name or self.current.epoch < _GREATEST_EPOCH):
            producer_id, epoch = self.current
            request = m.InitProducerIdRequest(identity=name, producer_id=producer_id, producer_epoch=epoch)
        try:
            answer: m.InitProducerIdResponse = await self._cluster.ask(
                m.Kind.INIT_PRODUCER_ID, request, timeout=self._settings.request_timeout_ms / 1000
            )
            if answer.error != ErrorCode.NONE:
                raise error_for(answer.error, "producer id", answer.message)
            self.current = ProducerIdentity(answer.producer_id, answer.producer_epoch)
            self._failures = 0
        except ProducerFencedError as error:
            self.fenced = error
        except (ClientError, TransportError) as error:
            self._failures += 1
            _log.warning("failed to get a producer id, retrying: %s", error)
            await trio.sleep(self._cluster.backoff(self._failures))
        finally:
            self._asking = False
        self._wake(0)
