"""Frames on their way in, over streams of bytes."""

from __future__ import annotations

import attrs

from .._in_c import _framing, in_c
from .._payload import BufferPayload, EmptyPayload
from ..abc import Link, Payload
from ..frames import Frame, Header, Limits

FRAMES_AT_ONCE = 256
"""More frames than these from one read are handed out in turns: other tasks run between them."""


@attrs.define(slots=True, eq=False)
class Partial:
    """A frame too large for the receive buffer, while it comes in."""

    header: Header
    body: bytearray
    payload: Payload
    missing: list[memoryview]
    may_be_handed_over: bool = False
    """Whether it is not known yet if the payload comes as bytes."""


@in_c
def take_frames(link: Link, /) -> list[Frame] | None:
    """The result of `StreamLink._parse`, if all that is there are frames that are whole, small and right.

    None: there is more to do. Frames in front of that may wait in `_ready` already.
    """
    return None


def bind(link: type[Link]) -> None:
    """Have `take_frames` in C find the fields of links of this class, and of what it makes."""
    if _framing is not None:
        _framing.bind(
            link=link,
            limits=Limits,
            header=Header,
            frame=Frame,
            empty=EmptyPayload,
            payload=BufferPayload,
            most=FRAMES_AT_ONCE,
        )
