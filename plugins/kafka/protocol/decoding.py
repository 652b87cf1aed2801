"""Compiles the decoder of one message in one version: a flat function without a call for each field.

One `struct` call reads a run of fields of a fixed size, with the length that follows it. A length is compared with
the bytes that are left before anything is made of it, so that the input's size bounds what a decoder allocates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import unpack_from
from typing import Any

from . import structs, tables
from .errors import MalformedError
from .source import Source, read_varint

Decoder = Callable[[Any, int, int], tuple[structs.Struct, int]]


def compiled(table: tables.Table, version: int, classes: Mapping[str, type[structs.Struct]]) -> Decoder:
    """`decode(buffer, position, elements)`: the message and where it ends.

    Besides `MalformedError` it raises `struct.error` and `IndexError` for bytes that end too early.
    """
    return _Writer(version, version in table.flexible, classes).function(table)


class _Writer:
    def __init__(self, version: int, flexible: bool, classes: Mapping[str, type[structs.Struct]]) -> None:
        self._version = version
        self._flexible = flexible
        self._classes = classes
        self._source = Source("def decode(buf, pos, left):")
        self._run: list[tuple[str, str]] = []
        """(letter, variable) of the fixed fields that are to be read together."""

    def function(self, table: tables.Table) -> Decoder:
        source = self._source
        source.constants.update(
            MalformedError=MalformedError,
            read_varint=read_varint,
            NO_ID=structs.NO_ID,
            **self._classes,
            **{f"new_{name}": kind.of for name, kind in self._classes.items()},
        )
        source.add("end, most = len(buf), left")
        made = self._struct(table.struct)
        self._flush()
        source.add(f"return {made}, pos")
        return source.compile("decode", f"{table.name} v{self._version} decoder")

    def _struct(self, struct: tables.Struct) -> str:
        """Read a struct; the expression that makes it."""
        values = {each.name: structs.default(each) for each in struct.fields}
        for field in struct.at(self._version):
            values[field.name] = self._field(field)
        if self._flexible:
            tagged = struct.tagged_at(self._version)
            for field in tagged:
                name = values[field.name] = self._source.name("v")
                self._source.add(f"{name} = {structs.default(field)}")
            self._flush()
            self._tags([(field, values[field.name]) for field in tagged])
        return f"new_{struct.name}({', '.join(values.values())})"

    def _flush(self) -> None:
        """Read the fixed fields that have gathered."""
        run, self._run = self._run, []
        if not run:
            return
        layout = self._source.layout("".join(letter for letter, _ in run))
        unpack = self._source.constant("unpack", layout)
        names = ", ".join(variable for _, variable in run)
        self._source.add(f"{names}{',' if len(run) == 1 else ''} = {unpack}.unpack_from(buf, pos)")
        self._source.add(f"pos += {layout.size}")

    def _fixed(self, letter: str) -> str:
        name = self._source.name("v")
        self._run.append((letter, name))
        return name

    def _field(self, field: tables.Field) -> str:
        """Read a field; the variable, or expression, that has it."""
        nullable = self._version in field.nullable
        if field.is_array:
            return self._array(field, nullable)
        if field.struct is not None:
            return self._nested(field.struct, nullable)
        return self._value(field.type, nullable, field.name)

    def _value(self, kind: str, nullable: bool, name: str) -> str:
        if kind in tables.FIXED:
            return self._fixed(tables.FIXED[kind])
        if kind == "uuid":
            return self._fixed("16s")
        return self._text(kind, nullable, name)

    def _text(self, kind: str, nullable: bool, name: str) -> str:
        """A string, bytes or records: a length, then that many bytes."""
        source, value = self._source, self._source.name("v")
        size = self._length("h" if kind == "string" else "i")
        source.add(f"if {size} < 0:")
        source.add(f"    {value} = None" if nullable else self._refuse(f"{name} may not be null"))
        source.add(f"elif {size} > end - pos:")
        source.add(self._refuse(f"{name} is longer than what follows"))
        source.add("else:")
        read = {"string": f'str(buf[pos:pos + {size}], "utf-8")', "bytes": f"bytes(buf[pos:pos + {size}])"}
        source.add(f"    {value} = {read.get(kind, f'(pos, {size})')}")
        source.add(f"    pos += {size}")
        return value

    @staticmethod
    def _refuse(why: str) -> str:
        return f'    raise MalformedError("{why}")'

    @staticmethod
    def _refuse_most(where: str) -> str:
        return f'    raise MalformedError(f"{where} it has more than the {{most}} elements that it may have")'

    def _length(self, letter: str) -> str:
        """Read a length, which is -1 for null; nothing before it is unread afterwards."""
        if not self._flexible:
            size = self._fixed(letter)
            self._flush()
            return size
        self._flush()
        size = self._varint()
        self._source.add(f"{size} -= 1")
        return size

    def _varint(self) -> str:
        source, value = self._source, self._source.name("n")
        source.add(f"{value} = buf[pos]")
        source.add("pos += 1")
        source.add(f"if {value} > 127:")
        source.add(f"    {value}, pos = read_varint(buf, pos, {value})")
        return value

    def _array(self, field: tables.Field, nullable: bool) -> str:
        source, value = self._source, self._source.name("v")
        count = self._length("i")
        source.add(f"if {count} < 0:")
        source.add(f"    {value} = None" if nullable else self._refuse(f"{field.name} may not be null"))
        source.add("else:")
        source.indent()
        # Every element has a byte at least: more of them than bytes are left need not be looked for.
        source.add(f"if {count} > end - pos:")
        source.add(self._refuse(f"{field.name} has more elements than bytes follow"))
        source.add(f"left -= {count}{' >> 3' if field.name in tables.NODES else ''}")
        source.add("if left < 0:")
        source.add(self._refuse_most(f"with {field.name}"))
        if field.struct is None and field.type in tables.FIXED:
            letter = tables.FIXED[field.type]
            width = self._source.layout(letter).size
            unpack = source.constant("unpack", _unpack)
            source.add(f"{value} = {unpack}('{letter}', {count}, {width}, buf, pos)")
            source.add(f"pos += {count} * {width}")
        else:
            source.add(f"{value} = []")
            source.add(f"for _ in range({count}):")
            source.indent()
            made = self._struct(field.struct) if field.struct else self._value(field.type, False, field.name)
            self._flush()
            source.add(f"{value}.append({made})")
            source.dedent()
        source.dedent()
        return value

    def _nested(self, struct: tables.Struct, nullable: bool) -> str:
        source, value = self._source, self._source.name("v")
        if nullable:
            there = self._fixed("b")
            self._flush()
            source.add(f"if {there} < 0:")
            source.add(f"    {value} = None")
            source.add("else:")
            source.indent()
        made = self._struct(struct)
        self._flush()
        source.add(f"{value} = {made}")
        if nullable:
            source.dedent()
        return value

    def _tags(self, fields: list[tuple[tables.Field, str]]) -> None:
        """Tagged fields in any order; those that are not known are passed over (KIP-482)."""
        source = self._source
        count = self._varint()
        # One that nobody knows takes two bytes, and as long as an element.
        source.add(f"left -= {count}")
        source.add("if left < 0:")
        source.add(self._refuse_most("with its tagged fields"))
        source.add(f"for _ in range({count}):")
        source.indent()
        tag = self._varint()
        size = self._varint()
        after = source.name("after")
        source.add(f"{after} = pos + {size}")
        source.add(f"if {after} > end:")
        source.add(self._refuse("a tagged field is longer than what follows"))
        word = "if"
        for field, variable in fields:
            source.add(f"{word} {tag} == {field.tag}:")
            source.indent()
            read = self._field(field)
            self._flush()
            source.add(f"{variable} = {read}")
            source.add(f"if pos != {after}:")
            source.add(self._refuse(f"{field.name} is not as long as its tag says"))
            source.dedent()
            word = "elif"
        source.add("else:" if fields else "if True:")
        source.add(f"    pos = {after}")
        source.dedent()


def _unpack(letter: str, count: int, width: int, buffer: Any, position: int) -> list[Any]:
    """An array of fixed values of `width` bytes each."""
    if count * width > len(buffer) - position:
        raise MalformedError("an array is longer than what follows")
    return list(unpack_from(f">{count}{letter}", buffer, position))
