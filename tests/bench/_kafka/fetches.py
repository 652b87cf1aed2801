"""What one node takes for a GiB that a consumer fetches, beside a process that only sends the same bytes."""

from __future__ import annotations

import socket
import statistics
import struct
import time
from pathlib import Path

from insync.plugins.kafka.handlers import OFFERED
from insync.plugins.kafka.protocol import encode, message
from insync.plugins.kafka.protocol.apis import Api

from .._peers import sendfile as _sendfile
from .._processor import seconds_of, share_of

VERSION = 12
_PARTITION_BYTES, _ANSWER_BYTES = 1 << 20, 50 << 20
"""`max.partition.fetch.bytes` and `fetch.max.bytes` of Kafka's consumers."""
_GIB = 1 << 30
Fetch = message("FetchRequest")


def seconds_a_gib(
    servers: str, pids: tuple[int, ...], topic: str, folder: Path, size: int, rounds: int, idle: float
) -> tuple[float, float]:
    """Processor seconds of the leader of partition 0, without what it takes to be idle; those of `sendfile`.

    The same warm offsets are fetched again and again by a client that throws away what comes, over one connection,
    as much at a time as Kafka's consumers ask for. Medians of both, in turn. idle: seconds for which the idle node
    is looked at.
    """
    leader, address, led = _leader(servers, topic)
    pid = pids[leader - 1]
    share = share_of([pid], idle)
    node, bare = [], []
    for _ in range(rounds):
        start, before = time.monotonic(), seconds_of([pid])
        sent = _fetch(address, topic, led, size)
        used = seconds_of([pid]) - before - share * (time.monotonic() - start)
        node.append(used * _GIB / sent)
        bare.append(_sendfile.seconds_a_gib(folder, size))
    found = statistics.median(node)
    if found <= 0:
        raise RuntimeError(f"an idle node uses {share:.3f} s a second, more than one that is fetched from")
    return found, statistics.median(bare)


def _leader(servers: str, topic: str) -> tuple[int, tuple[str, int], list[int]]:
    """The leader of partition 0, its address, and what it leads of the topic."""
    from confluent_kafka.admin import AdminClient

    known = AdminClient({"bootstrap.servers": servers}).list_topics(topic, 30)
    parts = known.topics[topic].partitions
    leader = int(parts[0].leader)
    broker = known.brokers[leader]
    return leader, (broker.host, broker.port), [each for each in parts if parts[each].leader == leader]


def _fetch(address: tuple[str, int], topic: str, partitions: list[int], size: int) -> int:
    """Have at least `size` bytes of answers; how many came."""
    wanted = [
        Fetch.FetchPartition(partition=each, fetch_offset=0, partition_max_bytes=_PARTITION_BYTES)
        for each in partitions
    ]
    asked = Fetch(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=_ANSWER_BYTES,
        topics=[Fetch.FetchTopic(topic=topic, partitions=wanted)],
    )
    head = struct.pack(">hhih", Api.FETCH, VERSION, 1, 4) + b"test"
    body = head + b"\0" * OFFERED.is_flexible(Api.FETCH, VERSION) + encode(asked, VERSION)[0]
    frame, buffer, came = struct.pack(">i", len(body)) + body, bytearray(1 << 20), 0
    with socket.create_connection(address, 30) as link:
        while came < size:
            link.sendall(frame)
            (left,) = struct.unpack(">i", _exactly(link, 4))
            if left < 1 << 16:
                raise RuntimeError(f"an answer of {left} bytes: {topic} is empty, or cannot be fetched")
            came += left
            while left:
                count = link.recv_into(buffer, min(left, len(buffer)))
                if not count:
                    raise RuntimeError(f"{left} bytes of an answer were not sent")
                left -= count
    return came


def _exactly(link: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = link.recv(size - len(found))
        if not more:
            raise RuntimeError("the node has closed the connection")
        found += more
    return found
