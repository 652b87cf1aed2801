"""Frames on their way in, over streams of bytes."""

from __future__ import annotations

import attrs

from ..abc import Payload
from ..frames import Header

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
