"""Quotas of clients: bytes a second on this node, kept by answering at once and then serving nothing for a while.

A token bucket for each client and direction holds what may be taken within one second. A client that takes more
learns from the answer how long to pause (`throttle_time_ms`, KIP-219), and the node serves no more of its requests
of that kind until then: they wait in order, none is dropped. Clients that pause by themselves never have any
waiting. The bytes of requests count against the transport's credit meanwhile, so a connection that does not pause
is held up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import chain

import attrs
import trio

from ...core.control.quotas import CONSUMER, PRODUCER, Entity, Quotas, Rate, limit_of
from .._timers import Timer, Timers
from .counters import Counters
from .inbound import Inbound

BURST = 1.0
"""Seconds of its rate that a client may take at once."""
SHORTEST = 1e-6
"""Seconds; a pause below that is none, or a clock that cannot tell two moments apart would never end it."""
MOST_IDLE = 1000
"""Buckets of clients that take nothing now that are kept; a name costs a client nothing."""


@attrs.define(eq=False, slots=True)
class Bucket:
    """Tokens are bytes; taking more than there are is a debt that time pays."""

    rate: float
    tokens: float
    filled_at: float

    @classmethod
    def full(cls, rate: float, now: float) -> Bucket:
        return cls(rate, rate * BURST, now)

    def take(self, size: int, now: float) -> float:
        """Take `size` bytes; gives the seconds until the debt is paid, 0 if there is none."""
        self.fill(now)
        self.tokens -= size
        return self.pause(now)

    def pause(self, now: float) -> float:
        """Seconds until something may be taken again."""
        self.fill(now)
        pause = -self.tokens / self.rate
        return pause if pause > SHORTEST else 0.0

    def fill(self, now: float) -> None:
        self.tokens = min(self.rate * BURST, self.tokens + (now - self.filled_at) * self.rate)
        self.filled_at = now

    @property
    def is_full(self) -> bool:
        return self.tokens >= self.rate * BURST


@attrs.frozen(eq=False, slots=True)
class Held:
    """A request that waits for its client's pause to be over."""

    rate: Rate
    request: Inbound
    client_id: str
    serve: Callable[[], None]


@attrs.define(eq=False, slots=True)
class Client:
    """One client in one direction."""

    bucket: Bucket
    held: deque[Held] = attrs.Factory(deque)
    timer: Timer | None = None


class ClientQuotas:
    """All of one node. Belongs to the event loop."""

    def __init__(
        self,
        timers: Timers,
        counters: Counters,
        settle: Callable[[], None],
        *,
        producer_default: int | None = None,
        consumer_default: int | None = None,
    ) -> None:
        """`settle` is called after requests that waited have been served. The defaults hold where the metadata
        store says nothing.
        """
        self._timers = timers
        self._counters = counters
        self._settle = settle
        self._defaults: dict[Rate, int | None] = {PRODUCER: producer_default, CONSUMER: consumer_default}
        self._quotas: Quotas = {}
        self._clients: dict[tuple[Rate, Entity], Client] = {}
        self._most = MOST_IDLE
        """At how many the idle ones are looked for next."""
        self.is_limited = producer_default is not None or consumer_default is not None
        """Whether there is any limit: without one nobody needs to be asked for."""

    @property
    def held(self) -> int:
        """Requests that wait."""
        return sum(len(client.held) for client in self._clients.values())

    def change(self, quotas: Quotas) -> None:
        """The metadata store has other limits; what waits is looked at again, in order."""
        if quotas == self._quotas:
            return
        self._quotas = quotas
        self.is_limited = bool(quotas) or any(self._defaults.values())
        former, self._clients = self._clients, {}
        for client in former.values():
            if client.timer is not None:
                client.timer.cancel()
        for key, client in former.items():
            # A debt stays one, or a change would be a way out of it.
            entity_limit = self._limit(key[0], key[1])
            if entity_limit is not None:
                bucket = client.bucket
                paid = bucket.tokens / bucket.rate
                bucket.rate = float(entity_limit)
                bucket.tokens = paid * entity_limit
                self._clients[key] = Client(bucket)
        for held in chain.from_iterable(client.held for client in former.values()):
            self._hold_or_serve(held)
        self._settle()

    def hold(self, rate: Rate, request: Inbound, client_id: str, serve: Callable[[], None]) -> bool:
        """Keep a request until its client may go on, then call `serve`; False if it may be served now."""
        client = self._client(rate, request, client_id)
        if client is None or not (client.held or client.bucket.pause(trio.current_time())):
            return False
        held = Held(rate, request, client_id, serve)
        client.held.append(held)
        request.on_cancel(lambda: self._given_up(held))
        self._wake_later(client)
        return True

    def take(self, rate: Rate, request: Inbound, client_id: str, size: int) -> None:
        """Count bytes of a request that is served; `request.throttle_ms` is what its answer has to say."""
        client = self._client(rate, request, client_id)
        if client is None:
            return
        pause = client.bucket.take(size, trio.current_time())
        if pause:
            request.throttle_ms = max(request.throttle_ms, 1 + int(1000 * pause))
            self._counters.throttled_ms[rate] += request.throttle_ms

    def _client(self, rate: Rate, request: Inbound, client_id: str) -> Client | None:
        """The client to charge; None for nodes, and without a limit."""
        if not self.is_limited or request.peer.node_id >= 0:
            return None
        found = limit_of(self._quotas, request.peer.name, client_id, rate)
        if found is None:
            default = self._defaults[rate]
            if default is None:
                return None
            found = Entity("client_id", client_id), default
        key = rate, found[0]
        client = self._clients.get(key)
        if client is None:
            self._forget_idle()
            client = self._clients[key] = Client(Bucket.full(found[1], trio.current_time()))
        return client

    def _limit(self, rate: Rate, entity: Entity) -> int | None:
        user = entity.name if entity.entity_type == "user" else ""
        client_id = entity.name if entity.entity_type == "client_id" else ""
        found = limit_of(self._quotas, user, client_id, rate)
        return found[1] if found is not None and found[0] == entity else self._defaults[rate]

    def _forget_idle(self) -> None:
        if len(self._clients) < self._most:
            return
        now = trio.current_time()
        for key, client in list(self._clients.items()):
            client.bucket.fill(now)
            if client.bucket.is_full and not client.held:
                del self._clients[key]
        # Where most have debts, looking at all of them for each new name would hold up everybody.
        self._most = max(MOST_IDLE, 2 * len(self._clients))

    def _wake_later(self, client: Client) -> None:
        if client.timer is None:
            pause = client.bucket.pause(trio.current_time())
            client.timer = self._timers.call_after(pause, lambda: self._go_on(client))

    def _go_on(self, client: Client) -> None:
        """The pause is over: serve what waits until there is another one."""
        client.timer = None
        while client.held and not client.bucket.pause(trio.current_time()):
            client.held.popleft().serve()
        if client.held:
            self._wake_later(client)
        self._settle()

    def _hold_or_serve(self, held: Held) -> None:
        client = self._client(held.rate, held.request, held.client_id)
        if client is not None and (client.held or client.bucket.pause(trio.current_time())):
            client.held.append(held)
            self._wake_later(client)
        else:
            held.serve()

    def _given_up(self, held: Held) -> None:
        """The client has gone, or waits no more: nothing was done, and nothing is."""
        for client in self._clients.values():
            if held in client.held:
                client.held.remove(held)
                held.request.payload.release()
                return
