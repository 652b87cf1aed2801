"""How a handler is named: which API, in which versions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs

from ..client import Client
from ..protocol import Struct
from ..protocol.apis import Api

Handler = Callable[[Client, Struct, int], Awaitable[Struct]]
"""Takes a request in a version, gives the answer: a field that the version lacks is left out by the encoder."""


@attrs.frozen
class Offer:
    """An API that is served in versions `least` to `most`."""

    api: Api
    least: int
    most: int
    handler: Handler
