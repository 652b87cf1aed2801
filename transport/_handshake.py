"""Who are you, and do we fit: the exchange with which every connection begins.

Both sides send preface and HELLO at once, judge the other's, and send the verdict: REPLY with correlation 0 to
accept, ERROR with correlation 0, a `Status` and a sentence to refuse. Each starts when it has accepted and been
accepted.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import trio

from .abc import Link
from .errors import (
    AuthError,
    EndOfLink,
    LinkBroken,
    ProtocolError,
    TransportError,
    VersionMismatchError,
    WrongPeerError,
)
from .frames import Frame, FrameType, Hello, Limits, Status, decode_hello, encode_header, encode_hello
from .requests import Identity

_ERRORS: dict[int, type[TransportError]] = {
    Status.UNSUPPORTED_VERSION: VersionMismatchError,
    Status.WRONG_CLUSTER: WrongPeerError,
    Status.WRONG_NODE: WrongPeerError,
    Status.STALE_INCARNATION: WrongPeerError,
    Status.AUTHENTICATION_FAILED: AuthError,
}
_FAREWELL = 1.0


@attrs.frozen
class Refusal:
    """Why a peer is not accepted."""

    status: Status
    text: str


Judge = Callable[[Hello, Hello], Refusal | None]
"""Judges (ours, theirs)."""


@attrs.frozen
class Introduced:
    """The outcome: who the peer is, the limits that hold, and frames that came right behind."""

    hello: Hello
    limits: Limits
    frames: list[Frame]


def make_hello(identity: Identity, lane: str, limits: Limits, expect_node: int | None = None) -> Hello:
    return Hello(
        cluster_id=identity.cluster_id,
        node_id=identity.node_id,
        incarnation=identity.incarnation,
        lane=lane,
        expected_node=expect_node,
        limits=limits,
    )


async def introduce(link: Link, mine: Hello, judge: Judge) -> Introduced:
    """Shake hands on a fresh link. On an error the caller ends the link.

    Raises:
      WrongPeerError, VersionMismatchError, AuthError: One side refuses the other.
      ProtocolError: What came is no handshake.
      EndOfLink, LinkBroken: The link ended.
    """
    await link.send(encode_hello(mine), ())
    theirs = decode_hello(await link.recv_hello())
    limits = mine.limits.settle(theirs.limits)
    link.set_limits(limits)
    refusal = judge(mine, theirs)
    if refusal is not None:
        await _refuse(link, refusal)
        raise _error(refusal.status, refusal.text, link)
    await link.send(encode_header(FrameType.REPLY, 0), ())
    verdict, *frames = await link.recv_many()
    _read_verdict(verdict, link)
    return Introduced(theirs, limits, frames)


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
    await link.send(encode_header(FrameType.ERROR, 0, aux=refusal.status, body=refusal.text.encode()), ())
    with trio.move_on_after(_FAREWELL):
        try:
            if link.caps.half_close:
                await link.send_eof()
            while True:
                for frame in await link.recv_many():
                    frame.payload.release()
        except (EndOfLink, LinkBroken, ProtocolError):
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
