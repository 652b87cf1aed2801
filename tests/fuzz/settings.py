"""The settings file under the fuzzer: whatever is in it, a node's settings come of it or one clear error."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import attrs

from insync.replication.node import InvalidSettingError, NodeSettings, configuration, load_settings
from insync.replication.node import settings as settings_
from insync.replication.node.requests import authorisation as authorisation_

from ._python import PythonTarget

_NEEDED = {"node_id": 1, "data_dir": "d", "store": "memory://x"}


def run_file(raw: bytes) -> None:
    """A file, below what must be given in any case: an error names the file and is one line."""
    with tempfile.NamedTemporaryFile(suffix=".toml") as file:
        file.write(raw)
        file.flush()
        try:
            found = load_settings(file=file.name, environment={}, given=_NEEDED)
        except InvalidSettingError as error:
            assert str(error)
            return
    assert isinstance(found, NodeSettings)
    for field in attrs.fields(NodeSettings):
        value = getattr(found, field.name)
        assert isinstance(value, str | int | float | tuple | Path | None), field.name


def run_texts(raw: bytes) -> None:
    """Lines of assignments, and of the environment: the same."""
    text = raw.decode(errors="surrogateescape")
    lines = [line for line in text.split("\n") if line]
    half = len(lines) // 2
    environment = dict(line.partition("=")[::2] for line in lines[half:])
    try:
        load_settings(environment=environment, assignments=lines[:half], given=_NEEDED)
    except InvalidSettingError as error:
        assert str(error)


def _files() -> Iterator[bytes]:
    for field in attrs.fields(NodeSettings):
        for value in ("1", "-1", "1.5", "true", '"x"', '["tcp://127.0.0.1:0", "x"]', "1979-05-27", "{a = 1}"):
            yield f"{field.name} = {value}\n".encode()
    yield b'node_id = 3\ndata_dir = "/srv"\nstore = "sqlite:///srv/meta.db"\nallow = ["alice=produce+consume"]\n'
    yield b"[node]\nnode_id = 3\n"
    yield b"node_idd = 3\n"
    yield b"\xff\xfe"
    yield b"x = 0x" + b"f" * 40
    yield b"linger = inf\nx = nan\n"


def _texts() -> Iterator[bytes]:
    for field in attrs.fields(NodeSettings):
        for value in ("1", "no", "", "a,b", "1e9"):
            yield (f"{field.name}={value}\n{configuration.PREFIX}{field.name.upper()}={value}\n".encode())


_MODULES = (configuration, settings_, authorisation_)

TARGETS = (
    PythonTarget("settings_file", run_file, _MODULES, _files),
    PythonTarget("settings_texts", run_texts, _MODULES, _texts),
)
