"""TLS handshakes that a test begins, and in which steps of the event loop they go on."""

from __future__ import annotations

import ssl
from contextlib import suppress

from .kafka.steps import Steps


def first_flight() -> bytes:
    """What a client says first."""
    made, said = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.MemoryBIO()
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    with suppress(ssl.SSLWantReadError):
        made.wrap_bio(ssl.MemoryBIO(), said).do_handshake()
    return said.read()


def noting(steps: Steps, taken: dict[ssl.SSLObject, int]) -> type[ssl.SSLObject]:
    """A class of TLS objects that write down the first step in which each goes on with its handshake."""

    class Noting(ssl.SSLObject):
        def do_handshake(self) -> None:
            # Once more when the answer is sent, which is nothing.
            taken.setdefault(self, steps.count)
            super().do_handshake()

    return Noting
