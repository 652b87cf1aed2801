"""What the Python processes that Spark keeps do once."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from insync.plugins.spark._workers import in_worker

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

DAEMON = """
import gc, sys
from importlib.machinery import ModuleSpec
from insync.plugins.spark._workers import settle

class Ring:
    def __init__(self, dies): self.me, self.dies = self, dies
    def __del__(self): self.dies.append(self)

settle()
assert gc.get_freeze_count() == 0, "a user's own process"
sys.modules["__main__"].__spec__ = ModuleSpec("pyspark.daemon", None)
dead = []
Ring(dead)
settle()
frozen = gc.get_freeze_count()
assert frozen > 1000 and len(dead) == 1, (frozen, dead)
Ring(dead)
settle()
assert gc.get_freeze_count() <= frozen and len(dead) == 1, "only once"
gc.collect()
assert len(dead) == 2, "what was made later is collected as ever"

import xml.dom.minidom
settle()
more = gc.get_freeze_count()
assert more > frozen, "what came with another kind of task is out of sight, too"
settle()
assert gc.get_freeze_count() <= more, "and only once"
"""

RECEIVED = """
import os, pickle, socket, sys
from importlib.machinery import ModuleSpec
from insync.plugins.spark._columns import source_schema
from insync.plugins.spark._options import Options
from insync.plugins.spark._sink import InsyncStreamWriter, InsyncWriter
from insync.plugins.spark._source import InsyncReader, InsyncStreamReader

listener = socket.create_server(("127.0.0.1", 0))
java = socket.create_connection(listener.getsockname())
ours, _ = listener.accept()
socket.setdefaulttimeout(5)  # as a user's function may have done
plain, _ = socket.socketpair()
kind = (socket.IPPROTO_TCP, socket.TCP_QUICKACK)
given = {"servers": "tcp://127.0.0.1:1", "subscribe": "t", "startingOffsets": "earliest"}
options = Options(given, ("subscribe", "startingOffsets"))
schema = source_schema(["value"], False)
sent = [make(options, schema) for make in (InsyncReader, InsyncStreamReader)]
sent += [make(None) for make in (InsyncWriter, InsyncStreamWriter)]
for spec, acknowledges in (None, 0), (ModuleSpec("pyspark.daemon", None), 1):
    sys.modules["__main__"].__spec__ = spec
    for each in sent:
        ours.setsockopt(*kind, 0)
        assert not ours.getsockopt(*kind), "it waits with its acknowledgement"
        found = pickle.loads(pickle.dumps(each))
        assert vars(found).keys() == vars(each).keys()
        assert ours.getsockopt(*kind) == acknowledges, (each, spec)
ours.send(b"x"), plain.send(b"x")
assert java.recv(1) == b"x", "nothing was closed"
assert os.get_blocking(ours.fileno()), "whoever reads it waits as before"

def fails(path):
    raise OSError(24, "Too many open files")

os.listdir = fails
assert vars(pickle.loads(pickle.dumps(sent[0]))).keys() == vars(sent[0]).keys(), "it is later, and does not fail"
"""


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="of Linux alone")
def test_a_task_acknowledges_what_java_has_sent_and_no_user_process_does() -> None:
    subprocess.run([sys.executable, "-c", RECEIVED], check=True, timeout=60)


def test_a_process_settles_once_for_what_it_imports_and_only_if_it_is_sparks() -> None:
    subprocess.run([sys.executable, "-c", DAEMON], check=True, timeout=60)


def test_a_process_of_sparks_is_known_for_one(spark: SparkSession) -> None:
    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from insync.plugins.spark._workers import in_worker

        for _ in batches:
            yield pa.record_batch({"known": [in_worker()]})

    found = spark.range(0, 2, 1, 2).mapInArrow(look, "known boolean").collect()
    assert [row.known for row in found] == [True, True]
    assert not in_worker()
