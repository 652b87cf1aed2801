"""What is measured with Kafka's clients, of any cluster that they can talk to."""

from __future__ import annotations

import re
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from ...interop.kafka import Java
from .._warm_up import warm_up

FULL = re.compile(r"([\d.]+) records/sec \(([\d.]+) MB/sec\)")


def create(servers: str, topic: str, partitions: int, config: Mapping[str, str] = {}) -> None:
    """A topic of three replicas that can be written to."""
    import confluent_kafka as ck
    from confluent_kafka.admin import AdminClient, NewTopic

    admin, deadline = AdminClient({"bootstrap.servers": servers}), time.perf_counter() + 60
    while len(admin.list_topics(timeout=30).brokers) < 3 and time.perf_counter() < deadline:
        time.sleep(0.1)
    (made,) = admin.create_topics([NewTopic(topic, partitions, 3, config=dict(config))]).values()
    made.result(30)
    producer = ck.Producer({"bootstrap.servers": servers})
    for partition in range(partitions):
        producer.produce(topic, b"first", partition=partition)
    if producer.flush(60):
        raise RuntimeError(f"{topic} cannot be written to")


def delete(servers: str, topic: str) -> None:
    """Brokers delete its files when they think it right."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": servers})
    (deleted,) = admin.delete_topics([topic]).values()
    deleted.result(30)


def perf_test(java: Java, servers: str, topic: str, count: int, size: int, *settings: str) -> float:
    """MB a second of Kafka's own producer-perf-test."""
    said = java.run(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", str(count), "--record-size", str(size), "--throughput", "-1"),
        *("--producer-props", f"bootstrap.servers={servers}", *settings),
    )
    return float(FULL.findall(said)[-1][0]) * size / 1e6


def consumer_perf_test(java: Java, servers: str, topic: str, count: int) -> float:
    """MB a second of Kafka's own consumer-perf-test, from the first fetch to the last record."""
    said = java.run(
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", servers, "--topic", topic, "--messages", str(count)),
        *("--timeout", "60000"),
    )
    names, values = (
        [each.strip() for each in line.split(",")] for line in said.splitlines() if line.count(",") > 8
    )
    told = dict(zip(names, values, strict=True))
    if int(told["data.consumed.in.nMsg"]) < count:
        raise RuntimeError(f"{told['data.consumed.in.nMsg']} records of {count}")
    return float(told["data.consumed.in.MB"]) * (1 << 20) / 1e6 / (float(told["fetch.time.ms"]) / 1000)


def produce(servers: str, topic: str, count: int, size: int, **settings: Any) -> float:
    """Records a second of librdkafka, acks=all, until the last is acknowledged."""
    import confluent_kafka as ck

    producer = ck.Producer({"bootstrap.servers": servers, **_dotted(settings)})
    producer.list_topics(topic, 30)
    value = b"x" * size
    start = time.perf_counter()
    for _ in range(count):
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.01)
    if producer.flush(120):
        raise RuntimeError("records are not acknowledged")
    return count / (time.perf_counter() - start)


def consume(servers: str, topic: str, count: int, size: int) -> float:
    """Bytes a second of one librdkafka consumer from the beginning of a topic.

    When its queue is full librdkafka pauses, by default for a second: a cluster that is faster than this program
    would be measured as slower than one that is not.
    """
    import confluent_kafka as ck

    consumer = ck.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "bench",
            "enable.auto.commit": False,
            "check.crcs": False,
            "fetch.queue.backoff.ms": 1,
        }
    )
    partitions = consumer.list_topics(topic, 30).topics[topic].partitions
    consumer.assign([ck.TopicPartition(topic, each, 0) for each in partitions])
    found, start = 0, time.perf_counter()
    while found < count:
        found += len(consumer.consume(10_000, 1.0))
        if time.perf_counter() > start + 120:
            raise RuntimeError(f"{found} records of {count}")
    rate = count * size / (time.perf_counter() - start)
    consumer.close()
    return rate


def latency(servers: str, topic: str, count: int, per_second: int, size: int = 100) -> list[float]:
    """Seconds from `produce` to the acknowledgement by all, sorted, at a rate, without lingering.

    The first second (`warm_up`) is not counted: connections are made in it.
    """
    import confluent_kafka as ck

    producer = ck.Producer({"bootstrap.servers": servers, "linger.ms": 0, "socket.nagle.disable": True})
    producer.list_topics(topic, 30)
    warm = warm_up(count, per_second)
    taken: list[float] = []
    early: list[float] = []
    is_over = threading.Event()

    def poll() -> None:
        while not is_over.is_set():
            producer.poll(0.05)

    def note(begun: float, error: Any, into: list[float]) -> None:
        if error is None:
            into.append(time.perf_counter() - begun)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        start = time.perf_counter()
        for index in range(warm + count):
            time.sleep(max(0.0, start + index / per_second - time.perf_counter()))
            heard = partial(note, time.perf_counter(), into=early if index < warm else taken)
            producer.produce(topic, b"x" * size, on_delivery=lambda error, _, heard=heard: heard(error))
        producer.flush(60)
    finally:
        is_over.set()
        thread.join()
    if len(taken) < count:
        raise RuntimeError(f"{count - len(taken)} records were not acknowledged")
    return sorted(taken)


def end_to_end(servers: str, topic: str, count: int, per_second: int) -> list[float]:
    """Seconds from `produce` until a consumer has the record, sorted, at a rate, without lingering.

    As in `latency`, the first second is not counted.
    """
    import confluent_kafka as ck

    group = f"late-{time.monotonic_ns()}"
    consumer = ck.Consumer({"bootstrap.servers": servers, "group.id": group, "enable.auto.commit": False})
    place = ck.TopicPartition(topic, 0)
    _, place.offset = consumer.get_watermark_offsets(place, 30)
    consumer.assign([place])
    came: list[float] = []
    failed: list[Any] = []
    warm = warm_up(count, per_second)
    sent = warm + count

    def read() -> None:
        deadline = time.perf_counter() + sent / per_second + 60
        while len(came) < sent and time.perf_counter() < deadline:
            each = consumer.poll(0.1)  # `consume` would wait until it has as many as it is asked for
            if each is not None:
                failed.append(each.error()) if each.error() else came.append(time.perf_counter())

    producer = ck.Producer({"bootstrap.servers": servers, "linger.ms": 0, "socket.nagle.disable": True})
    producer.list_topics(topic, 30)
    thread = threading.Thread(target=read)
    thread.start()
    begun: list[float] = []
    try:
        start = time.perf_counter()
        for index in range(sent):
            time.sleep(max(0.0, start + index / per_second - time.perf_counter()))
            begun.append(time.perf_counter())
            producer.produce(topic, b"x" * 100, partition=0)
            producer.poll(0)
        if producer.flush(60):
            raise RuntimeError("records were not acknowledged")
    finally:
        thread.join()
        consumer.close()
    if len(came) < sent or failed:
        raise RuntimeError(f"{len(came)} records of {sent} came: {failed[:1]}")
    # One partition: they come in the order in which they were sent.
    return sorted(after - before for before, after in zip(begun[warm:], came[warm:], strict=True))


def at(values: Sequence[float], share: float) -> float:
    """A quantile of sorted values."""
    return values[min(len(values) - 1, int(len(values) * share))]


def longest_gap(servers: str, topic: str, seconds: float, hit: Callable[[], object]) -> float:
    """Seconds between two acknowledgements of an idempotent producer, at most, while `hit` is called once."""
    import confluent_kafka as ck

    producer = ck.Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 0})
    producer.list_topics(topic, 30)
    seen: list[float] = []
    failed: list[Any] = []

    def note(error: Any, _: Any) -> None:
        seen.append(time.perf_counter()) if error is None else failed.append(error)

    start, is_hit = time.perf_counter(), False
    while (now := time.perf_counter()) < start + seconds:
        producer.produce(topic, b"x" * 100, partition=0, on_delivery=note)
        producer.poll(0.002)
        if not is_hit and now > start + seconds / 3:
            is_hit = True
            hit()
    if producer.flush(120) or failed:
        raise RuntimeError(f"{len(failed)} records are lost: {failed[:1]}")
    return max(after - before for before, after in pairwise(seen))


def longest_gap_of_java(command: Sequence[str], seconds: float, hit: Callable[[], object]) -> float:
    """The same of the Java client: `command` is that of `tests/chaos/KafkaLoad.java`, which writes."""
    seen: list[float] = []
    failed: list[str] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            end = is_hit = 0.0
            for line in process.stdout:
                now = time.perf_counter()
                if line.startswith("failed"):
                    failed.append(line.strip())
                if not line.startswith("ack"):
                    continue
                seen.append(now)
                end = end or now + seconds
                if not is_hit and now > end - seconds * 2 / 3:
                    is_hit = now
                    hit()
                if now > end and not process.stdin.closed:
                    process.stdin.close()
        finally:
            process.kill()
    if failed or len(seen) < 2 or not is_hit or seen[-1] < is_hit:
        raise RuntimeError(f"{len(seen)} records were acknowledged, {len(failed)} failed: {failed[:1]}")
    return max(after - before for before, after in pairwise(seen))


def leader_of(servers: str, topic: str) -> int:
    """Of partition 0."""
    from confluent_kafka.admin import AdminClient

    known = AdminClient({"bootstrap.servers": servers}).list_topics(topic, 30)
    return int(known.topics[topic].partitions[0].leader)


def median(values: Sequence[float]) -> float:
    """Of an odd number of rounds, the one in the middle."""
    return float(statistics.median(values))


def _dotted(settings: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "."): value for name, value in settings.items()}
