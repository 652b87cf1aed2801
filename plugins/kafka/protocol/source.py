"""Lines of generated code, and the numbers that decoders and encoders share."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct as Packed
from typing import Any

from .errors import MalformedError

INT16, INT32, DOUBLE = Packed(">h"), Packed(">i"), Packed(">d")


class Source:
    """The text of one function while it is written."""

    def __init__(self, head: str) -> None:
        self._lines = [head]
        self._depth = 1
        self._names = 0
        self.constants: dict[str, Any] = {}

    def add(self, line: str) -> None:
        self._lines.append("    " * self._depth + line)

    def indent(self) -> None:
        self._depth += 1

    def dedent(self) -> None:
        self._depth -= 1

    def name(self, prefix: str) -> str:
        """One that nothing else in the function has."""
        self._names += 1
        return f"{prefix}{self._names}"

    def constant(self, prefix: str, value: object) -> str:
        """A name under which the function finds `value`; the same value has one name."""
        for name, known in self.constants.items():
            if known is value:
                return name
        name = self.name(f"_{prefix}")
        self.constants[name] = value
        return name

    def layout(self, letters: str) -> Packed:
        """The layout of a run of fixed fields; the same for the same run."""
        for known in self.constants.values():
            if isinstance(known, Packed) and known.format == f">{letters}":
                return known
        return Packed(f">{letters}")

    def compile(self, name: str, where: str) -> Callable[..., Any]:
        """The function `name` that the lines define; tracebacks call its place `where`."""
        found = dict(self.constants)
        exec(compile("\n".join(self._lines), f"<{where}>", "exec"), found)
        made: Callable[..., Any] = found[name]
        return made


def read_varint(buffer: Any, position: int, low: int) -> tuple[int, int]:
    """An unsigned varint of 32 bits, and where it ends; its first byte, `low`, stands before `position`.

    Raises:
      MalformedError: It has more than five bytes, or more than 32 bits.
    """
    value, shift = low & 0x7F, 7
    while True:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            raise MalformedError("a length has more than five bytes")
    if value > 0xFFFFFFFF:
        raise MalformedError("a length has more than 32 bits")
    return value, position


def varint(value: int) -> bytes:
    """An unsigned varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
