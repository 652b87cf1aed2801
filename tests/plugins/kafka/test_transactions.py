"""Transactions by librdkafka: committed, aborted, with the offsets of a group, and of a producer that is fenced."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Cluster
from .programs.test_python_clients import PATIENCE, make, settings
from .programs.test_python_clients import librdkafka as librdkafka

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("kafka")]


def producer(librdkafka: Any, cluster: Cluster, name: str) -> Any:
    made = librdkafka.Producer(settings(cluster, transactional_id=name))
    made.init_transactions(PATIENCE)
    return made


def test_librdkafka_in_transactions(librdkafka: Any, cluster: Cluster) -> None:
    make(librdkafka, cluster, "txn-in")
    make(librdkafka, cluster, "txn-out")
    first = producer(librdkafka, cluster, "txn")
    for value, commits in ((b"one", True), (b"aborted", False), (b"two", True)):
        first.begin_transaction()
        first.produce("txn-in", value, partition=0)
        first.flush(PATIENCE)
        (first.commit_transaction if commits else first.abort_transaction)(PATIENCE)
    second = producer(librdkafka, cluster, "txn")
    first.begin_transaction()
    first.produce("txn-in", b"of a fenced producer", partition=0)
    with pytest.raises(librdkafka.KafkaException) as failure:
        first.commit_transaction(PATIENCE)
    assert failure.value.args[0].fatal()
    options = {
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "isolation_level": "read_committed",
    }
    reader = librdkafka.Consumer(settings(cluster, group_id="txn", **options))
    reader.subscribe(["txn-in"])
    found = [each.value() for each in reader.consume(2, PATIENCE)]
    assert found == [b"one", b"two"]
    second.begin_transaction()
    for value in found:
        second.produce("txn-out", value, partition=0)
    place = librdkafka.TopicPartition("txn-in", 0)
    positions = reader.position([place])
    second.send_offsets_to_transaction(positions, reader.consumer_group_metadata(), PATIENCE)
    second.commit_transaction(PATIENCE)
    assert reader.committed([place], timeout=PATIENCE)[0].offset == positions[0].offset
    reader.close()
    again = librdkafka.Consumer(settings(cluster, group_id="txn-2", **options))
    again.assign([librdkafka.TopicPartition("txn-out", 0, 0)])
    assert [each.value() for each in again.consume(2, PATIENCE)] == found
    again.close()
