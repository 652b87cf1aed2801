"""The exchange with which every connection begins: who are you, and do we fit.

Both sides send preface and HELLO at once, judge the other's, and send the verdict: REPLY with correlation 0 to
accept, ERROR with correlation 0, a `Status` and a sentence to refuse. Each starts when it has accepted and been
accepted. A side that knows the cluster's secret accepts with a proof of that, and takes nothing less.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from secrets import randbits

import attrs
import trio

from ..abc import Link
from ..errors import (
    AuthError,
    EndOfLink,
    FrameTooLargeError,
    LinkBroken,
    NotRegisteredError,
    ProtocolError,
    TransportError,
    VersionMismatchError,
    WrongPeerError,
)
from ..frames import (
    Frame,
    FrameType,
    Header,
    Hello,
    Limits,
    Status,
    decode_hello,
    encode_header,
    encode_hello,
)
from ..requests import Claims, Identity, Method, PeerIdentity
from ..security import is_proof, proof

_ERRORS: dict[int, type[TransportError]] = {
    Status.UNSUPPORTED_VERSION: VersionMismatchError,
    Status.WRONG_CLUSTER: WrongPeerError,
    Status.WRONG_NODE: WrongPeerError,
    Status.STALE_INCARNATION: WrongPeerError,
    Status.NOT_REGISTERED: NotRegisteredError,
    Status.AUTHENTICATION_FAILED: AuthError,
}
_CLIENT, _STORE = "client", "store"
_FAREWELL = 1.0
_PROOF_BYTES = 4096
"""Of a frame before its sender is known: a proof, or a sentence."""
_WRONG_SECRET = "the secrets differ: give all nodes and clients of a cluster the same secret_file"
_WRONG_NODE_SECRET = "the nodes' secrets differ: give all nodes, and served stores, the same node_secret_file"

_NAMELESS = (
    "the transport says that its links authenticate their peers, and this link names nobody (peer_name)"
)


@attrs.frozen
class Refusal:
    """Why a peer is not accepted."""

    status: Status
    text: str


class _NoPayloads:
    """Before the handshake is over nobody gets memory: a large payload behind it waits, any other is refused."""

    def admits(self, header: Header) -> bool:
        return False

    async def wait(self) -> None:
        raise ProtocolError("a payload came before the handshake was over")


Judge = Callable[[Hello, Hello], Refusal | None]
"""Judges (ours, theirs)."""


@attrs.frozen
class Introduced:
    """The outcome: who the peer is and how it proved that, the limits that hold, and frames right behind."""

    hello: Hello
    limits: Limits
    frames: list[Frame]
    method: Method = "none"
    name: str = ""
    """The client's name, by its certificate."""
    is_proven: bool = False
    """See `PeerIdentity`."""


def make_hello(
    identity: Identity,
    lane: str,
    limits: Limits,
    expect_node: int | None = None,
    *,
    proves: bool = False,
    proves_node: bool = False,
) -> Hello:
    return Hello(
        cluster_id=identity.cluster_id,
        node_id=identity.node_id,
        incarnation=identity.incarnation,
        lane=lane,
        expected_node=expect_node,
        limits=limits,
        nonce=randbits(64),
        window=limits.window_bytes,
        proves=proves,
        proves_node=proves_node,
    )


async def introduce(
    link: Link,
    mine: Hello,
    judge: Judge,
    *,
    dialer: bool,
    secrets: Sequence[bytes] = (),
    node_secrets: Sequence[bytes] = (),
    claims: Claims | None = None,
) -> Introduced:
    """Shake hands on a fresh link. On an error the caller ends the link.

    Between a node and the one that answers it `node_secrets` take the place of `secrets`. The dialer proves the
    first of them; an acceptor takes any, and proves the same. `claims`: asked by the acceptor.

    With a secret the dialer proves first: an acceptor tells strangers nothing, and takes nothing from them.

    Raises:
      WrongPeerError, VersionMismatchError, AuthError: One side refuses the other.
      ProtocolError: What came is no handshake.
      EndOfLink, LinkBroken: The link ended.
    """
    raw = encode_hello(mine)
    link.set_gate(_NoPayloads())
    await link.prepare()
    await link.send(raw, ())
    raw_theirs = await link.recv_hello()
    theirs = decode_hello(raw_theirs)
    limits = mine.limits.settle(theirs.limits)
    as_node = (mine if dialer else theirs).node_id >= 0 and (mine.proves_node or theirs.proves_node)
    refusal = (
        judge(mine, theirs)
        or _judge_proof(mine, theirs, as_node=as_node)
        or _judge_name(link, mine, theirs, dialer)
    )
    link.set_limits(limits)
    if refusal is not None:
        await _refuse(link, refusal)
        raise _error(refusal.status, refusal.text, link)
    if as_node:
        secrets = node_secrets

    is_proven = as_node or _vouches(link)
    method: Method = "token" if secrets else _method(link)

    async def check_claim() -> None:
        if claims is not None and theirs.node_id >= 0:
            reason = await claims(
                identity_of(theirs, theirs.lane, method, _client_name(link), is_proven=is_proven)
            )
            if reason is not None:
                await _refuse(link, Refusal(Status.NOT_REGISTERED, reason))
                raise _error(Status.NOT_REGISTERED, reason, link)

    if not secrets:
        await check_claim()
        await link.send(encode_header(FrameType.REPLY, 0), ())
        verdict, *frames = await link.recv_many()
        _read_verdict(verdict, link)
        return Introduced(theirs, limits, frames, method, _client_name(link), is_proven)
    wrong = _WRONG_NODE_SECRET if as_node else _WRONG_SECRET
    exchange = _Proofs(link, secrets, (raw, raw_theirs) if dialer else (raw_theirs, raw), wrong)
    frames = await (exchange.as_dialer() if dialer else exchange.as_acceptor(limits, check_claim))
    return Introduced(theirs, limits, frames, method, _client_name(link), is_proven)


def identity_of(hello: Hello, lane: str, method: Method, name: str, *, is_proven: bool) -> PeerIdentity:
    """The peer that has introduced itself by this HELLO."""
    return PeerIdentity(
        hello.cluster_id, hello.node_id, hello.incarnation, lane, method, name, is_proven=is_proven
    )


def _vouches(link: Link) -> bool:
    """Whether the link itself shows that the peer is who it says it is, or one that may as well be."""
    return link.peer_name is not None or link.caps.one_process or link.peer_uid == os.geteuid()


def _method(link: Link) -> Method:
    """The proof of the peer that the link itself shows."""
    if link.peer_name is not None:
        return "mtls"
    return "none" if link.peer_uid is None else "uid"


@attrs.define
class _Proofs:
    """Both sides prove that they know a secret, the dialer first; then they are introduced."""

    link: Link
    secrets: Sequence[bytes]
    """The one to prove first, and the ones to take."""
    hellos: tuple[bytes, bytes]
    wrong: str
    """The text for a peer that proves another secret."""

    async def as_dialer(self) -> list[Frame]:
        await self._send(b"dialer")
        # The acceptor knows which one that was.
        self.secrets = self.secrets[:1]
        return await self._take(b"acceptor")

    async def as_acceptor(self, limits: Limits, check_claim: Callable[[], Awaitable[None]]) -> list[Frame]:
        self.link.set_limits(attrs.evolve(limits, max_body_bytes=_PROOF_BYTES, max_payload_bytes=0))
        frames = await self._take(b"dialer")
        if frames:
            raise ProtocolError(f"{self.link.remote} sent frames before the handshake was over")
        self.link.set_limits(limits)
        await check_claim()
        await self._send(b"acceptor")
        return frames

    async def _send(self, role: bytes) -> None:
        given = proof(self.secrets[0], role, *self.hellos)
        await self.link.send(encode_header(FrameType.REPLY, 0, body=given), ())

    async def _take(self, role: bytes) -> list[Frame]:
        verdict, *frames = await self.link.recv_many()
        _read_verdict(verdict, self.link)
        # All are compared: the time must not tell which one it is.
        proved = [
            secret for secret in self.secrets if is_proof(verdict.body, proof(secret, role, *self.hellos))
        ]
        if not proved:
            for frame in frames:
                frame.payload.release()
            refusal = Refusal(Status.AUTHENTICATION_FAILED, self.wrong)
            await _refuse(self.link, refusal)
            raise _error(refusal.status, refusal.text, self.link)
        self.secrets = proved
        return frames


def _judge_proof(mine: Hello, theirs: Hello, *, as_node: bool) -> Refusal | None:
    if as_node:
        if mine.proves_node == theirs.proves_node:
            return None
        lacking, having = (theirs, mine) if mine.proves_node else (mine, theirs)
        text = (
            f"{_name(having)} knows the nodes' secret and {_name(lacking)} does not: give all nodes, and served "
            "stores, the same node_secret_file"
        )
        return Refusal(Status.AUTHENTICATION_FAILED, text)
    if mine.proves == theirs.proves:
        return None
    lacking, having = (theirs, mine) if mine.proves else (mine, theirs)
    text = f"{_name(having)} has a secret but {_name(lacking)} has none: set the same secret_file on all"
    return Refusal(Status.AUTHENTICATION_FAILED, text)


def _judge_name(link: Link, mine: Hello, theirs: Hello, dialer: bool) -> Refusal | None:
    """A certificate speaks for one node, for a served store or for the clients, of one cluster."""
    if link.peer_name is None:
        # Such addresses need no secret, so whoever comes would be let in.
        return Refusal(Status.AUTHENTICATION_FAILED, _NAMELESS) if link.caps.authenticated else None
    cluster, _, who = link.peer_name.removeprefix("isr://").partition("/")
    # Who listens and is no node serves a store; clients listen nowhere.
    unnumbered = _STORE if dialer else _CLIENT
    claimed = str(theirs.node_id) if theirs.node_id >= 0 else unnumbered
    if who.startswith(f"{_CLIENT}/"):
        who = _CLIENT
    # Who does not know its cluster yet still belongs to one.
    belongs = theirs.cluster_id or mine.cluster_id or cluster
    if (belongs, claimed) == (cluster, who):
        return None
    text = f"the certificate is for {link.peer_name}, not for isr://{belongs}/{claimed}"
    return Refusal(Status.AUTHENTICATION_FAILED, text)


def _client_name(link: Link) -> str:
    """NAME of `isr://CLUSTER/client/NAME`."""
    _, _, who = (link.peer_name or "").removeprefix("isr://").partition("/")
    return who.removeprefix(f"{_CLIENT}/") if who.startswith(f"{_CLIENT}/") else ""


def judge_dialer(mine: Hello, theirs: Hello) -> Refusal | None:
    """The acceptor's opinion of a dialer."""
    refusal = _judge_both(mine, theirs)
    if refusal is None and theirs.expected_node not in (None, mine.node_id):
        text = f"node {theirs.expected_node} is wanted, but this is {_name(mine)}"
        return Refusal(Status.WRONG_NODE, text)
    return refusal


def judge_acceptor(mine: Hello, theirs: Hello) -> Refusal | None:
    """The dialer's opinion of an acceptor."""
    refusal = _judge_both(mine, theirs)
    if refusal is None and mine.expected_node not in (None, theirs.node_id):
        text = f"node {mine.expected_node} is wanted, but {_name(theirs)} answers at this address"
        return Refusal(Status.WRONG_NODE, text)
    return refusal


def _judge_both(mine: Hello, theirs: Hello) -> Refusal | None:
    if theirs.max_version < mine.min_version or mine.max_version < theirs.min_version:
        text = (
            f"no common wire version: {mine.min_version} to {mine.max_version} is spoken here, "
            f"{theirs.min_version} to {theirs.max_version} there; upgrade the older side"
        )
        return Refusal(Status.UNSUPPORTED_VERSION, text)
    if mine.cluster_id and theirs.cluster_id and mine.cluster_id != theirs.cluster_id:
        text = (
            f"{_name(mine)} belongs to cluster {mine.cluster_id!r}, {_name(theirs)} to {theirs.cluster_id!r}"
        )
        return Refusal(Status.WRONG_CLUSTER, text)
    return None


def _name(hello: Hello) -> str:
    return f"node {hello.node_id}" if hello.node_id >= 0 else "a client"


async def _refuse(link: Link, refusal: Refusal) -> None:
    """Say why, and let the peer read it: closing with unread bytes would reset the link and lose the answer."""
    link.set_limits(Limits(max_body_bytes=_PROOF_BYTES, max_payload_bytes=0))
    verdict = encode_header(FrameType.ERROR, 0, aux=refusal.status, body=refusal.text.encode())
    with trio.move_on_after(_FAREWELL):
        try:
            await link.send(verdict, ())
            if link.caps.half_close:
                await link.send_eof()
            while True:
                for frame in await link.recv_many():
                    frame.payload.release()
        except (EndOfLink, LinkBroken, ProtocolError, FrameTooLargeError):
            return


def _read_verdict(frame: Frame, link: Link) -> None:
    frame.payload.release()
    header = frame.header
    if header.corr != 0 or header.type not in (FrameType.REPLY, FrameType.ERROR):
        raise ProtocolError(f"{link.remote} sent a frame of type {header.type} before the handshake was over")
    if header.type == FrameType.ERROR:
        raise _error(header.aux, frame.body.decode(errors="replace"), link)


def _error(status: int, text: str, link: Link) -> TransportError:
    kind = _ERRORS.get(status, ProtocolError)
    return kind(f"{link.remote}: {text}", peer=str(link.remote), delivery="never")
