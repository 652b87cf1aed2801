"""What Kafka's own producer reaches by itself: brokers that answer each produce request on arrival.

One process plays three brokers, so that the client has the connections and requests that it has with three. The
process checks nothing and keeps nothing. With a folder it is the floor of `_floor` behind Kafka's protocol: it
writes the received bytes to one file, and sends that file to two processes that write it. Nobody waits for them.

`python -m tests.bench._kafka.sink [FOLDER]` prints its addresses and ends with its input.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import struct
import sys
import threading
from pathlib import Path
from typing import Any

from insync.plugins.kafka.protocol import decode, encode, message
from insync.plugins.kafka.protocol.apis import Api

from .._peers import floor as _floor

BROKERS, PARTITIONS = 3, 6
VERSIONS = {Api.PRODUCE: 8, Api.METADATA: 8, Api.INIT_PRODUCER_ID: 1}
"""Those that are offered; none has tags in its header."""
HEAD = struct.Struct(">hhih")
ENDLESS = 1 << 62
"""Bytes that the copying processes wait for: they end with their connection."""
_Asked, _Answer = message("ProduceRequest"), message("ProduceResponse")
_Names, _Metadata = message("MetadataRequest"), message("MetadataResponse")
_Versions, _Identity = message("ApiVersionsResponse"), message("InitProducerIdResponse")


class Floor:
    """A log, and two processes that copy it as it grows."""

    def __init__(self, folder: Path) -> None:
        self._log = os.open(folder / "leader", os.O_CREAT | os.O_RDWR | os.O_TRUNC)
        self._lock = threading.Lock()
        self._written = _floor.Watermark()
        outbound = socket.create_server(("127.0.0.1", 0))
        context = multiprocessing.get_context("spawn")
        for number in range(2):
            given = outbound.getsockname()[1], f"{folder}/follower-{number}", ENDLESS
            context.Process(target=_floor.follow, args=given, daemon=True).start()
        for _ in range(2):
            given = outbound.accept()[0], self._log, self._written, ENDLESS
            threading.Thread(target=_floor.forward, args=given, daemon=True).start()

    def write(self, data: memoryview) -> None:
        with self._lock:
            while data:
                written = os.write(self._log, data)
                self._written.advance(written)
                data = data[written:]


class Sink:
    """The brokers, in one process."""

    def __init__(self, floor: Floor | None) -> None:
        self._floor = floor
        self._listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(BROKERS)]
        self.ports = [each.getsockname()[1] for each in self._listeners]

    def start(self) -> None:
        for each in self._listeners:
            threading.Thread(target=self._accept, args=(each,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            link, _ = listener.accept()
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        buffer = memoryview(bytearray(2 << 20))
        with link:
            while _fill(link, buffer[:4]):
                frame = buffer[: int.from_bytes(buffer[:4], "big")]
                if not _fill(link, frame):
                    return
                api, version, number, named = HEAD.unpack_from(frame)
                answer = b"".join(self._answer(api, version, frame, HEAD.size + max(0, named)))
                link.sendall(struct.pack(">ii", 4 + len(answer), number) + answer)

    def _answer(self, api: int, version: int, frame: memoryview, at: int) -> Any:
        if api == Api.PRODUCE:
            if self._floor is not None:
                self._floor.write(frame)
            return encode(_taken(decode(_Asked, version, frame, at)[0]), version)
        if api == Api.METADATA:
            return encode(self._metadata(decode(_Names, version, frame, at)[0]), version)
        if api == Api.INIT_PRODUCER_ID:
            return encode(_Identity(producer_id=1, producer_epoch=0), version)
        offered = {**VERSIONS, Api.API_VERSIONS: version}
        listed = [
            _Versions.ApiVersion(api_key=each, min_version=most, max_version=most)
            for each, most in offered.items()
        ]
        return encode(_Versions(api_keys=listed), version)

    def _metadata(self, asked: Any) -> Any:
        """Whatever topic is asked for is there."""
        nodes = range(1, BROKERS + 1)
        brokers = [
            _Metadata.MetadataResponseBroker(node_id=node, host="127.0.0.1", port=port)
            for node, port in zip(nodes, self.ports, strict=True)
        ]
        parts = [
            _Metadata.MetadataResponsePartition(
                partition_index=index,
                leader_id=1 + index % BROKERS,
                leader_epoch=0,
                replica_nodes=list(nodes),
                isr_nodes=list(nodes),
            )
            for index in range(PARTITIONS)
        ]
        topics = [_Metadata.MetadataResponseTopic(name=each.name, partitions=parts) for each in asked.topics]
        return _Metadata(brokers=brokers, cluster_id="sink", controller_id=1, topics=topics)


def _taken(asked: Any) -> Any:
    topics = [
        _Answer.TopicProduceResponse(
            name=topic.name,
            partition_responses=[
                _Answer.PartitionProduceResponse(index=each.index) for each in topic.partition_data
            ],
        )
        for topic in asked.topic_data
    ]
    return _Answer(responses=topics)


def _fill(link: socket.socket, buffer: memoryview) -> bool:
    """Fill the buffer; False if the connection ended before it was full."""
    at = 0
    while at < len(buffer):
        count = link.recv_into(buffer[at:])
        if not count:
            return False
        at += count
    return True


if __name__ == "__main__":
    sink = Sink(Floor(Path(sys.argv[1])) if sys.argv[1:] else None)
    sink.start()
    print(",".join(f"127.0.0.1:{port}" for port in sink.ports), flush=True)
    sys.stdin.read()
    # Not by the interpreter's own end: it would end the copying processes before the threads that send to them.
    # They end with their connections.
    os._exit(0)
