"""Our tables of fields against the schemas in the newest kafka-clients: messages, fields, versions, defaults."""

from __future__ import annotations

import json
import re
import zipfile
from typing import Any

import pytest

from insync.plugins.kafka.protocol import UnknownVersionError, decode, message, message_of
from insync.plugins.kafka.protocol.tables import Struct, Table, read, versions
from insync.plugins.kafka.schema import TEXTS

from ....interop.kafka import Java

pytestmark = pytest.mark.interop
TABLES = {table.name: table for text in TEXTS for table in read(text)}


@pytest.fixture(scope="session")
def schemas(clients: Java) -> dict[str, dict[str, Any]]:
    """Every schema of a request or response, by its name."""
    (jar,) = [each for each in clients.classpath.split(":") if "kafka-clients" in each]
    found = {}
    with zipfile.ZipFile(jar) as file:
        for name in file.namelist():
            if re.fullmatch(r"common/message/\w+\.json", name):
                text = re.sub(r"^\s*//.*$", "", file.read(name).decode(), flags=re.MULTILINE)
                schema = json.loads(text)
                if schema["type"] in ("request", "response"):
                    found[schema["name"]] = schema
    assert len(found) > 150
    return found


def snake(name: str) -> str:
    name = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name).lower()


def worth(kind: str, default: object) -> object:
    """A default as a value: none said is the type's zero."""
    text = str(default) if default is not None else ""
    if text == "null":
        return None
    if kind.startswith("[]") or kind[0].isupper() or kind in ("string", "bytes", "records", "uuid"):
        return text
    if kind == "bool":
        return text.lower() == "true"
    return float(text or 0) if kind == "float64" else int(text or "0", 0)


def ours(struct: Struct) -> list[tuple[Any, ...]]:
    """Each field, with the fields that it holds, as one value that can be compared."""
    return [
        (
            field.name,
            ("[]" if field.is_array else "") + field.type,
            field.versions,
            field.nullable,
            field.tag,
            worth(("[]" if field.is_array else "") + field.type, field.default),
            ours(field.struct) if field.struct is not None else [],
        )
        for field in struct.fields
    ]


def theirs(fields: list[dict[str, Any]], shared: dict[str, list[dict[str, Any]]]) -> list[tuple[Any, ...]]:
    found = []
    for field in fields:
        kind = field["type"]
        parts = field.get("fields") or shared.get(kind.removeprefix("[]"), [])
        shared = {**shared, kind.removeprefix("[]"): parts} if parts else shared
        tagged = field.get("taggedVersions")
        assert tagged is None or tagged == field["versions"], "a field that is tagged in some versions only"
        found.append(
            (
                snake(field["name"]),
                kind,
                versions(field["versions"]),
                versions(field.get("nullableVersions", "none")),
                field.get("tag"),
                worth(kind, field.get("default")),
                theirs(parts, shared),
            )
        )
    return found


def test_every_field_of_every_message_is_kafkas(schemas: dict[str, dict[str, Any]]) -> None:
    for name, table in TABLES.items():
        schema = schemas[name]
        shared = {each["name"]: each["fields"] for each in schema.get("commonStructs", [])}
        assert table.key == schema["apiKey"], name
        assert table.is_request == (schema["type"] == "request"), name
        assert table.versions == versions(schema["validVersions"]), name
        assert table.flexible == versions(schema["flexibleVersions"]), name
        assert ours(table.struct) == theirs(schema["fields"], shared), name


def test_a_field_that_differs_is_found(schemas: dict[str, dict[str, Any]]) -> None:
    """The comparison sees each property of a field: its name, type, versions, null, tag and default."""
    text = next(text for text in TEXTS if "FetchResponse" in text)
    right = theirs(schemas["FetchResponse"]["fields"], {})
    for before, after in (
        ("session_id int32 7+", "session int32 7+"),
        ("session_id int32 7+", "session_id int64 7+"),
        ("session_id int32 7+", "session_id int32 8+"),
        (
            "aborted_transactions []AbortedTransaction 4+ null 4+",
            "aborted_transactions []AbortedTransaction 4+",
        ),
        ("12+ tag 1", "12+ tag 3"),
        ("last_stable_offset int64 4+ = -1", "last_stable_offset int64 4+"),
    ):
        assert before in text
        (wrong,) = [each for each in read(text.replace(before, after)) if each.name == "FetchResponse"]
        assert ours(wrong.struct) != right, after


def test_every_api_has_its_request_and_its_response() -> None:
    keys = {table.key for table in TABLES.values()}
    for key in keys:
        asked, told = message_of(key, is_request=True), message_of(key, is_request=False)
        assert asked is not None and told is not None
        assert asked.TABLE.versions == told.TABLE.versions
    assert message_of(9999, is_request=True) is None


def test_a_message_or_a_version_that_nobody_knows_is_named() -> None:
    with pytest.raises(UnknownVersionError, match="'FetchRequset'"):
        message("FetchRequset")
    with pytest.raises(UnknownVersionError, match="FetchRequest has versions 4 to 18, and not 99"):
        decode(message("FetchRequest"), 99, b"")


def test_tables_are_lines_of_text() -> None:
    (table,) = read(
        """
Told 7 response 1-3 flexible 2+
  struct Pair
    left int32 0+ = -1
  first []Pair 1+ null 2+
  second Pair 3 tag 4
"""
    )
    assert isinstance(table, Table)
    first, second = table.struct.fields
    assert (first.is_array, first.nullable.start, first.struct) == (True, 2, second.struct)
    assert (second.versions, second.tag) == (range(3, 4), 4)
    assert table.struct.at(3) == [first]
    assert table.struct.tagged_at(3) == [second]
