from collections.abc import Sequence
from typing import Final, TypeVar

from typing_extensions import Buffer

from .parts import Part, Payload

NO_FRAME: Final = 1
DAMAGED: Final = 2
BAD_WORDS: Final = 3

P = TypeVar("P", bound=Copied)

class Header:
    @property
    def type(self) -> int: ...
    @property
    def kind(self) -> int: ...
    @property
    def kind_version(self) -> int: ...
    @property
    def flags(self) -> int: ...
    @property
    def corr(self) -> int: ...
    @property
    def body_length(self) -> int: ...
    @property
    def aux(self) -> int: ...
    @property
    def payload_length(self) -> int: ...
    @property
    def body_crc(self) -> int: ...
    @property
    def payload_crc(self) -> int: ...
    @property
    def max_response(self) -> int: ...
    @property
    def size(self) -> int: ...

class Frame:
    header: Header
    body: bytes
    payload: Payload
    def __init__(self, header: Header, body: bytes, payload: Payload) -> None: ...

class Copied:
    _data: bytes | None
    nbytes: int
    def __init__(self, data: bytes) -> None: ...

def encode_header(
    frame_type: int,
    corr: int,
    *,
    kind: int = 0,
    kind_version: int = 0,
    flags: int = 0,
    aux: int = 0,
    body: bytes = b"",
    payload_length: int = 0,
    payload_crc: int = 0,
    max_response: int = 0,
) -> bytes: ...
def size_of(parts: Sequence[Part], /) -> int: ...
def payload_of(parts: Sequence[Part], /) -> tuple[int, int, int]: ...
def decode_header(raw: bytes, /) -> Header | int: ...
def take_frames(
    buffer: Buffer,
    start: int,
    end: int,
    max_body: int,
    max_payload: int,
    large: int,
    most: int,
    payload_type: type[P],
    /,
) -> tuple[list[Frame], int]: ...
