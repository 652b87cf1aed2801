"""`chaos+SCHEME://…`: any transport with faults, repeatable by a seed.

    chaos+tcp://127.0.0.1:9000?seed=7&delay_ms=20&loss=0.001&rate_bytes=1000000&cut=out&cut_after=100

Faults are of the end that uses such a URL: what it sends is late or lost, what it receives is slow. A listener
advertises its URL with the faults, so whoever dials that has them at both ends. All other options are the
inner transport's.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Literal, Self

import attrs
import trio

from .abc import Buffer, Capabilities, Gate, Link, LinkTransport, Listener, Part, Payload
from .errors import LinkBroken
from .frames import Frame, Limits
from .security import Security
from .urls import URL, Endpoint

PREFIX = "chaos+"


@attrs.frozen
class Faults:
    """The faults on the links of one address.

    seed: the same seed and the same frames give the same faults; each link of an address draws its own.
    delay_ms: before each frame is sent, up to so long, at random.
    loss: the probability that the link breaks instead of sending a frame.
    rate_bytes: how many bytes a second are read.
    cut, cut_after: after so many frames, the preface not counted, those sent ("out") or received ("in") vanish
      while the link stays open.
    """

    seed: int = 0
    delay_ms: int = 0
    loss: float = 0.0
    rate_bytes: int = 0
    cut: Literal["", "in", "out"] = ""
    cut_after: int = 0

    @classmethod
    def take(cls, url: URL) -> tuple[Faults, URL]:
        """The faults that a URL asks for, and the URL without them. ValueError for a value that makes no sense."""
        names = [field.name for field in attrs.fields(cls)]
        given = {name: value for name, value in url.options if name in names}
        rest = tuple((name, value) for name, value in url.options if name not in names)
        numbers: dict[str, int] = {}
        for name in ("seed", "delay_ms", "rate_bytes", "cut_after"):
            text = given.get(name, "0")
            if not (text.isascii() and text.isdigit()):
                raise ValueError(f"{url}: {name} is a whole number, not {text!r}")
            numbers[name] = int(text)
        cut = given.get("cut", "")
        if cut not in ("", "in", "out"):
            raise ValueError(f"{url}: cut is in or out, not {cut!r}")
        faults = cls(loss=_probability(url, given.get("loss", "0")), cut=cut, **numbers)  # type: ignore[arg-type]
        return faults, URL(url.scheme.removeprefix(PREFIX), url.authority, url.path, rest)


def _probability(url: URL, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise ValueError(f"{url}: loss is a probability from 0 to 1, not {text!r}")
    return value


class ChaosTransport(LinkTransport):
    """Another transport, with faults. The registry makes one for each scheme that is asked for."""

    schemes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, inner: LinkTransport) -> None:
        self._inner = inner
        self._links: Counter[Endpoint] = Counter()
        self.caps: Capabilities = inner.caps  # type: ignore[misc]
        self.preference = inner.preference  # type: ignore[misc]

    def parse(self, url: URL) -> Endpoint:
        _, rest = Faults.take(url)
        try:
            inner = self._inner.parse(rest)
        except ValueError as error:
            raise ValueError(f"{url}: {error}") from error
        faults = tuple(option for option in url.options if option not in rest.options)
        return URL(PREFIX + inner.scheme, inner.authority, inner.path, inner.options + faults)

    def can_dial(self, endpoint: Endpoint) -> bool:
        return self._inner.can_dial(Faults.take(endpoint)[1])

    def is_local(self, endpoint: Endpoint) -> bool:
        return self._inner.is_local(Faults.take(endpoint)[1])

    def secured(self, security: Security) -> Self:
        inner = self._inner.secured(security)
        return self if inner is self._inner else type(self)(inner)

    async def connect(self, endpoint: Endpoint) -> Link:
        faults, inner = Faults.take(endpoint)
        return self.wrap(await self._inner.connect(inner), faults, endpoint)

    async def listen(self, endpoint: Endpoint) -> Listener:
        faults, inner = Faults.take(endpoint)
        listener = await self._inner.listen(inner)
        return _ChaosListener(self, listener, faults, endpoint)

    def wrap(self, link: Link, faults: Faults, endpoint: Endpoint) -> Link:
        """A link with faults of its own, drawn by the seed and how many links this address has had."""
        self._links[endpoint] += 1
        return ChaosLink(link, faults, random.Random(f"{faults.seed}/{self._links[endpoint]}"))


class _ChaosListener(Listener):
    def __init__(
        self, transport: ChaosTransport, inner: Listener, faults: Faults, endpoint: Endpoint
    ) -> None:
        self._transport, self._inner, self._faults, self._endpoint = transport, inner, faults, endpoint
        options = tuple(option for option in endpoint.options if option[0] in attrs.asdict(faults))
        self.endpoints = [
            URL(PREFIX + one.scheme, one.authority, one.path, one.options + options)
            for one in inner.endpoints
        ]

    async def accept(self) -> Link:
        return self._transport.wrap(await self._inner.accept(), self._faults, self._endpoint)

    async def aclose(self) -> None:
        await self._inner.aclose()


class ChaosLink(Link):
    """A link whose frames are late, lost with it, slowly read, or vanish."""

    def __init__(self, inner: Link, faults: Faults, draw: random.Random) -> None:
        self.caps, self.local, self.remote = inner.caps, inner.local, inner.remote
        self._inner, self._faults, self._random = inner, faults, draw
        self._frames = {"in": 0, "out": -1}
        """Those so far; the first that is sent is the preface."""
        self._sending = False
        self._counted = 0

    @property
    def received(self) -> int:
        return self._inner.received

    @property
    def sent(self) -> int:
        return self._inner.sent

    @property
    def peer_name(self) -> str | None:
        return self._inner.peer_name

    @property
    def peer_uid(self) -> int | None:
        return self._inner.peer_uid

    def trim(self) -> None:
        self._inner.trim()

    def set_limits(self, limits: Limits) -> None:
        self.limits = limits
        self._inner.set_limits(limits)

    def set_gate(self, gate: Gate) -> None:
        self._inner.set_gate(gate)

    async def prepare(self) -> None:
        await self._inner.prepare()

    async def send(self, head: Buffer, parts: Sequence[Part], *, more: bool = False) -> None:
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this link")
        self._sending = True
        try:
            if self._faults.delay_ms:
                await trio.sleep(self._random.uniform(0, self._faults.delay_ms / 1000))
            if self._random.random() < self._faults.loss:
                self._inner.abort()
                raise LinkBroken(f"the link to {self.remote} broke, as asked for", peer=str(self.remote))
            if not self._vanishes("out"):
                await self._inner.send(head, parts, more=more)
        finally:
            self._sending = False

    async def recv(self) -> tuple[memoryview, Payload]:
        while True:
            await self._keep_pace()
            head, payload = await self._inner.recv()
            if not self._vanishes("in"):
                return head, payload
            payload.release()

    async def recv_many(self) -> list[Frame]:
        while True:
            await self._keep_pace()
            left = []
            for frame in await self._inner.recv_many():
                if self._vanishes("in"):
                    frame.payload.release()
                else:
                    left.append(frame)
            if left:
                return left

    async def recv_hello(self) -> bytes:
        return await self._inner.recv_hello()

    async def send_eof(self) -> None:
        await self._inner.send_eof()

    async def aclose(self) -> None:
        await self._inner.aclose()

    def abort(self) -> None:
        self._inner.abort()

    def _vanishes(self, way: Literal["in", "out"]) -> bool:
        self._frames[way] += 1
        return self._faults.cut == way and self._frames[way] > self._faults.cut_after

    async def _keep_pace(self) -> None:
        """Read no more before the time that what has come would have taken."""
        if self._faults.rate_bytes:
            new, self._counted = self._inner.received - self._counted, self._inner.received
            await trio.sleep(new / self._faults.rate_bytes)
