"""How a handler is named: which API, in which versions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import attrs

from insync.replication.node.service import Answer, NotAllowedError, ServiceError

from ..client import Client
from ..core.failures import first_error
from ..protocol import Encoded, Struct, encode_elements
from ..protocol.apis import Api, KafkaError

IN_A_TURN = 2000
"""Elements of a request that are served, or told of, in one turn of the loop if each takes several microseconds."""
Handler = Callable[[Client, Struct, int], Awaitable[Struct]]
"""Takes a request in a version, gives the answer: a field that the version lacks is left out by the encoder."""


@attrs.frozen
class Refused:
    """A node's answer that is an error and nothing else."""

    error: int
    message: str


@attrs.frozen
class Exchange:
    """An API of which each request is one request to the node. It is answered where the node answers.

    `asks` makes the node's request, or a `Refused` without it. `tells` makes the answer of what the node has said,
    or of a `Refused`. `refused` is the error for a client that may not ask.
    """

    asks: Callable[[Client, Struct, int], Any]
    tells: Callable[[Any, Struct, int], Struct]
    refused: KafkaError

    def start(self, client: Client, request: Struct, version: int, done: Callable[[Struct], None]) -> None:
        """Serve a request in a version; `done` is called once, unless the connection ends before."""
        asked = self.asks(client, request, version)
        if isinstance(asked, Refused):
            done(self.tells(asked, request, version))
            return

        def came(answer: Answer | ServiceError) -> None:
            done(self.tells(answer_of(answer, self.refused), request, version))

        client.service.call(client, asked, came)


def answer_of(answer: Answer | ServiceError, refused: KafkaError) -> Any:
    """The message of an answer, or why there is none: both have an `error` and a `message`."""
    if isinstance(answer, ServiceError):
        code = refused if isinstance(answer, NotAllowedError) else answer.code
        return Refused(code, str(answer))
    return answer.message


@attrs.frozen
class Offer:
    """An API that is served in versions `least` to `most`."""

    api: Api
    least: int
    most: int
    handler: Handler | Exchange


def encoded(kind: type[Struct], field: str, elements: Sequence[Struct], version: int) -> Encoded:
    """Elements of an array that messages of this kind have, with the first error among them."""
    error = first_error(kind(**{field: elements}))
    return Encoded(len(elements), encode_elements(kind, field, elements, version), error)


def joined(parts: Sequence[Encoded]) -> Encoded:
    """One behind the other."""
    error = next((each.error for each in parts if each.error), 0)
    return Encoded(sum([each.count for each in parts]), b"".join([each.data for each in parts]), error)
