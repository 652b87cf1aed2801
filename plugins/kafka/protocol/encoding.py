"""Compiles the encoder of one message in one version: a flat function that appends to one buffer.

A field that the version does not have is left out, whatever its value: a handler need not know versions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from . import structs, tables
from .source import INT16, INT32, Source, varint

NULL16, NULL32 = b"\xff\xff", b"\xff\xff\xff\xff"
Encoder = Callable[[structs.Struct], list[bytes]]


def compiled(table: tables.Table, version: int, classes: Mapping[str, type[structs.Struct]]) -> Encoder:
    """`encode(message)`: its bytes, in parts: between two of them stand the records that the caller has."""
    return _Writer(version, version in table.flexible, classes).function(table)


def compiled_elements(
    table: tables.Table, name: str, version: int, classes: Mapping[str, type[structs.Struct]]
) -> Callable[[Iterable[structs.Struct]], bytes]:
    """`encode(elements)`: elements of an array of the message, one behind the other, without their count."""
    return _Writer(version, version in table.flexible, classes).elements(table, name)


class _Writer:
    def __init__(self, version: int, flexible: bool, classes: Mapping[str, type[structs.Struct]]) -> None:
        self._version = version
        self._flexible = flexible
        self._source = Source("def encode(m):")
        self._source.constants.update(
            NO_ID=structs.NO_ID,
            Encoded=structs.Encoded,
            varint=varint,
            int16=INT16.pack,
            int32=INT32.pack,
            **classes,
        )
        self._out = "out"
        self._depth = 0
        """Of arrays within one another."""
        self._run: list[tuple[str, str]] = []
        """(letter, expression) of the fixed fields that are to be written together."""

    def function(self, table: tables.Table) -> Encoder:
        source = self._source
        source.add("out = bytearray()")
        source.add("parts = []")
        self._struct(table.struct, "m")
        self._flush()
        source.add("parts.append(bytes(out))")
        source.add("return parts")
        return source.compile("encode", f"{table.name} v{self._version} encoder")

    def elements(self, table: tables.Table, name: str) -> Callable[[Iterable[structs.Struct]], bytes]:
        source = self._source
        (struct,) = [field.struct for field in table.struct.at(self._version) if field.name == name]
        assert struct is not None
        self._depth = 1
        source.add("out = bytearray()")
        source.add("for each in m:")
        source.indent()
        self._struct(struct, "each")
        self._flush()
        source.dedent()
        source.add("return bytes(out)")
        return source.compile("encode", f"{table.name}.{name} v{self._version} encoder")

    def _flush(self) -> None:
        run, self._run = self._run, []
        if run:
            layout = self._source.layout("".join(letter for letter, _ in run))
            pack = self._source.constant("pack", layout)
            self._source.add(f"{self._out} += {pack}.pack({', '.join(value for _, value in run)})")

    def _struct(self, struct: tables.Struct, value: str) -> None:
        for field in struct.at(self._version):
            self._field(field, f"{value}.{field.name}")
        if self._flexible:
            self._flush()
            self._tags(struct.tagged_at(self._version), value)

    def _field(self, field: tables.Field, value: str) -> None:
        nullable = self._version in field.nullable
        if field.is_array:
            self._array(field, value, nullable)
        elif field.struct is not None:
            self._nested(field.struct, value, nullable)
        else:
            self._value(field.type, value, nullable)

    def _value(self, kind: str, value: str, nullable: bool) -> None:
        if kind in tables.FIXED:
            self._run.append((tables.FIXED[kind], value))
        elif kind == "uuid":
            self._run.append(("16s", value))
        elif kind == "records":
            self._records(value)
        else:
            self._text(kind, value, nullable)

    def _null(self, value: str, wide: bool) -> None:
        """Write null if the value is none, else go on below."""
        self._source.add(f"if {value} is None:")
        if self._flexible:
            self._source.add(f"    {self._out}.append(0)")
        else:
            null = self._source.constant("null", NULL32 if wide else NULL16)
            self._source.add(f"    {self._out} += {null}")
        self._source.add("else:")
        self._source.indent()

    def _length(self, size: str, wide: bool) -> None:
        source = self._source
        if not self._flexible:
            source.add(f"{self._out} += int{32 if wide else 16}({size})")
            return
        source.add(f"if {size} < 127:")
        source.add(f"    {self._out}.append({size} + 1)")
        source.add("else:")
        source.add(f"    {self._out} += varint({size} + 1)")

    def _text(self, kind: str, value: str, nullable: bool) -> None:
        source, text, size = self._source, self._source.name("b"), self._source.name("n")
        self._flush()
        source.add(f"{text} = {value}")
        if nullable:
            self._null(text, wide=kind != "string")
        if kind == "string":
            source.add(f"{text} = {text}.encode()")
        source.add(f"{size} = len({text})")
        self._length(size, wide=kind != "string")
        source.add(f"{self._out} += {text}")
        if nullable:
            source.dedent()

    def _records(self, value: str) -> None:
        source, records = self._source, self._source.name("r")
        self._flush()
        source.add(f"{records} = {value}")
        self._null(records, wide=True)
        source.add(f"if type({records}) is int:")
        source.indent()
        self._length(records, wide=True)
        source.add(f"parts.append(bytes({self._out}))")
        source.add(f"{self._out} = bytearray()")
        source.dedent()
        source.add("else:")
        source.indent()
        size = source.name("n")
        source.add(f"{size} = len({records})")
        self._length(size, wide=True)
        source.add(f"{self._out} += {records}")
        source.dedent()
        source.dedent()

    def _array(self, field: tables.Field, value: str, nullable: bool) -> None:
        source, array, size = self._source, self._source.name("a"), self._source.name("n")
        self._flush()
        source.add(f"{array} = {value}")
        if nullable:
            self._null(array, wide=True)
        may_be_encoded = field.struct is not None and not self._depth
        if may_be_encoded:
            source.add(f"if type({array}) is Encoded:")
            source.indent()
            source.add(f"{size} = {array}.count")
            self._length(size, wide=True)
            source.add(f"{self._out} += {array}.data")
            source.dedent()
            source.add("else:")
            source.indent()
        source.add(f"{size} = len({array})")
        self._length(size, wide=True)
        self._depth += 1
        each = source.name("e")
        source.add(f"for {each} in {array}:")
        source.indent()
        if field.struct is not None:
            self._struct(field.struct, each)
        else:
            self._value(field.type, each, nullable=False)
        self._flush()
        source.add("pass")
        source.dedent()
        self._depth -= 1
        if may_be_encoded:
            source.dedent()
        if nullable:
            source.dedent()

    def _nested(self, struct: tables.Struct, value: str, nullable: bool) -> None:
        source, nested = self._source, self._source.name("s")
        self._flush()
        source.add(f"{nested} = {value}")
        if nullable:
            source.add(f"if {nested} is None:")
            source.add(f"    {self._out} += b'\\xff'")
            source.add("else:")
            source.indent()
            source.add(f"{self._out}.append(1)")
        self._struct(struct, nested)
        self._flush()
        if nullable:
            source.add("pass")
            source.dedent()

    def _tags(self, fields: list[tables.Field], value: str) -> None:
        """Only what is not the default is written (KIP-482), and how many come is said before them."""
        source = self._source
        if not fields:
            source.add(f"{self._out}.append(0)")
            return
        differ = [_differs(field, f"{value}.{field.name}") for field in fields]
        outer, count, tags = self._out, source.name("n"), source.name("t")
        source.add(f"if not ({' or '.join(differ)}):")
        source.add(f"    {outer}.append(0)")
        source.add("else:")
        source.indent()
        source.add(f"{count} = 0")
        source.add(f"{tags} = b''")
        for field, differs in zip(fields, differ, strict=True):
            source.add(f"if {differs}:")
            source.indent()
            self._out = source.name("o")
            source.add(f"{self._out} = bytearray()")
            self._field(field, f"{value}.{field.name}")
            self._flush()
            source.add(f"{count} += 1")
            source.add(f"{tags} += varint({field.tag}) + varint(len({self._out})) + {self._out}")
            source.dedent()
        self._out = outer
        source.add(f"{outer}.append({count})")
        source.add(f"{outer} += {tags}")
        source.dedent()


def _differs(field: tables.Field, value: str) -> str:
    """Whether a value is not the default, as an expression: field by field, and nothing is made to compare with."""
    if field.struct is None or field.is_array or field.default == "null":
        return f"{value} != {structs.default(field)}"
    differ = " or ".join(_differs(each, f"{value}.{each.name}") for each in field.struct.fields)
    absent = structs.default(field)
    # Almost always it is not there at all.
    return f"{value} is not {absent} and ({differ})" if absent.endswith(".ABSENT") else differ
