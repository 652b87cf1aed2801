"""What a broker is told. Events are handled one after the other, each with one reading of the driver's clock."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import attrs

from ..partition import events as ev
from ..types import PartitionId
from .payloads import Payload


class Report(NamedTuple):
    """Something that one replica is to know: above all what became of a `Job` on its log.

    Of a replica that has gone meanwhile it is ignored.
    """

    partition: PartitionId
    event: ev.Event


# Connections to other nodes


@attrs.frozen(kw_only=True, slots=True)
class Connected:
    """A `Dial` has succeeded. hands_over_files: payloads arrive as files, which no wire carries."""

    dial: int
    connection: Hashable
    hands_over_files: bool = False


@attrs.frozen(kw_only=True, slots=True)
class DialFailed:
    """refused: the peer's machine answers, and says that nobody listens at the address."""

    dial: int
    reason: str
    refused: bool = False


@attrs.frozen(kw_only=True, slots=True)
class PeerDisconnected:
    """A dialled connection has ended, whoever ended it."""

    connection: Hashable
    reason: str


@attrs.frozen(kw_only=True, slots=True)
class Answered:
    """The answer to an `Ask`, decoded; an answer to a question that was given up changes nothing."""

    question: int
    message: object
    payload: Payload


@attrs.frozen(kw_only=True, slots=True)
class AskFailed:
    """An `Ask` gets no answer. malformed: what came cannot be decoded."""

    question: int
    reason: str
    malformed: bool = False


Event = Report | Connected | DialFailed | PeerDisconnected | Answered | AskFailed
