"""Our codec against another project's: kafka-python has schemas and a codec of its own."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from insync.plugins.kafka.protocol import message
from insync.plugins.kafka.protocol.apis import Api

from .samples import messages
from .test_codec import KINDS, whole

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
SHARED = 96
"""Messages, at least; kafka-python 3.0.12 lacks those of KIP-848."""


@cache
def theirs() -> dict[tuple[int, bool], Any]:
    """Classes of messages by key and direction."""
    package = pytest.importorskip("kafka.protocol.api_message", reason="kafka-python 3 or later")
    protocol = importlib.import_module("kafka.protocol")
    for found in pkgutil.walk_packages(protocol.__path__, "kafka.protocol."):
        if not found.name.startswith(("kafka.protocol.old", "kafka.protocol.generate_stubs")):
            importlib.import_module(found.name)

    def below(kind: Any) -> Iterator[Any]:
        for each in kind.__subclasses__():
            yield each
            yield from below(each)

    # A class of one version is a subclass, too.
    return {
        (each.API_KEY, each.is_request()): each
        for each in below(package.ApiMessage)
        if each._json is not None and each._class_version is None
    }


def known() -> list[tuple[str, int, Any]]:
    """Messages and versions that both sides have."""
    found = []
    for name, version in KINDS:
        table = message(name).TABLE
        # Its answers to ApiVersions read a layout that differs from what the header says.
        if table.key == Api.API_VERSIONS:
            continue
        kind = theirs().get((table.key, table.is_request))
        if kind is not None and version <= kind.max_version:
            found.append((name, version, kind))
    return found


def test_kafka_python_reads_and_writes_the_same_bytes() -> None:
    """Few, since kafka-python compiles each message when it is first used: others in each run."""
    kinds = known()
    assert len({name for name, _, _ in kinds}) >= SHARED

    @settings(max_examples=50, deadline=None)
    @given(st.data())
    def draw(data: st.DataObject) -> None:
        name, version, kind = data.draw(st.sampled_from(kinds))
        sent = whole(data.draw(messages(message(name), version)), version)
        told = kind.decode(sent, version=version)
        told._header = None  # it expects one, and does not write it
        assert bytes(told.encode(version=version)) == sent, (name, version)

    draw()
