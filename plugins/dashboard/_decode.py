"""Bytes of a record as text that a person can read. Their format is a guess, and nothing of them is ever run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import entry_points

from ...replication.errors import ReplicationError

GROUP = "insync.decoders"
"""Entry points of further formats (Avro, Protobuf, ...): a function from bytes to str that raises ValueError."""

Decoder = Callable[[bytes], str]

SHOWN = 2_000
"""Characters in a list of records."""
WHOLE = 200_000
"""Characters of a record that is looked at alone."""


class UnknownDecoderError(ReplicationError):
    """No format of that name is known here."""


def as_hex(data: bytes) -> str:
    """Sixteen bytes a line, with their offset and what of them is ASCII."""
    lines = []
    for start in range(0, len(data), 16):
        part = data[start : start + 16]
        shown = "".join(chr(each) if 32 <= each < 127 else "." for each in part)
        lines.append(f"{start:08x}  {part.hex(' '):<47}  {shown}")
    return "\n".join(lines)


def as_json(data: bytes) -> str:
    """Indented; raises ValueError if it is none."""
    return json.dumps(json.loads(data), indent=2, ensure_ascii=False)


def as_text(data: bytes) -> str:
    """Raises ValueError if it is no UTF-8."""
    return data.decode()


def as_anything(data: bytes) -> str:
    """JSON, else UTF-8, else hex."""
    for decode in (as_json, as_text):
        try:
            return decode(data)
        except (ValueError, RecursionError):
            continue
    return as_hex(data)


BUILT_IN: Mapping[str, Decoder] = {"auto": as_anything, "json": as_json, "utf-8": as_text, "hex": as_hex}


@cache
def decoders() -> Mapping[str, Decoder]:
    """Ours, then those of plugins; one that cannot be loaded says so where it is used."""
    found = dict(BUILT_IN)
    for entry in entry_points(group=GROUP):
        if entry.name not in found:
            found[entry.name] = _Lazy(entry.name, entry.load)
    return found


class _Lazy:
    """A plugin's decoder: loaded when it is first used, and whatever it raises is a ValueError."""

    def __init__(self, name: str, load: Callable[[], Decoder]) -> None:
        self._name = name
        self._load = load
        self._loaded: Decoder | None = None

    def __call__(self, data: bytes) -> str:
        try:
            if self._loaded is None:
                self._loaded = self._load()
            return str(self._loaded(data))
        except Exception as error:
            raise ValueError(f"the decoder {self._name} failed: {type(error).__name__}: {error}") from error


def readable(data: bytes | None, decoder: str = "auto", most: int = SHOWN) -> str:
    """At most about `most` characters, with how much is missing; "(null)" for None.

    Raises:
      UnknownDecoderError: There is no such decoder.
    """
    if data is None:
        return "(null)"
    decode = decoders().get(decoder)
    if decode is None:
        raise UnknownDecoderError(f"there is no decoder {decoder!r}: use one of {', '.join(decoders())}")
    cut = data
    if decoder == "hex" or len(data) > 64 * most:
        # Ten MB are not decoded for two thousand characters of them; what is cut may be no JSON any more.
        cut = data[: max(16, most // 4)]
    try:
        text = decode(cut)
    except (ValueError, RecursionError) as error:
        first = f"(not {decoder}: {error})" if cut is data else "(too long to decode)"
        text = f"{first}\n{as_hex(cut[: most // 5])}"
    # JSON may name half a surrogate pair, which no page can be encoded with.
    text = text.encode("utf-8", "backslashreplace").decode()
    whole = len(cut) == len(data) and len(text) <= most
    return text if whole else f"{text[:most]} ... ({len(data):,} bytes in all)"
