"""A data folder as a stopped broker of Kafka's leaves it, made in the test: by our log, with Kafka's small files.

The metadata records are written here byte for byte as Kafka's schemas have them, by nothing of the product.
"""

from __future__ import annotations

import hashlib
import stat
import struct
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from insync.storage import Chunk, DiskLog, LogDirectory, LogSettings
from insync.storage.batch import build_batch, build_marker, scan

CLUSTER = "i4L62kqJTUam6An8jzlIcg"
START = 1_700_000_000_000
SETTINGS = LogSettings(segment_bytes=1400, index_interval_bytes=1 << 20)
ROWS = 40


def topic_id(name: str) -> bytes:
    return hashlib.md5(name.encode()).digest()


def text_id(raw: bytes) -> str:
    """As Kafka writes it."""
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


# Metadata records


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def text(value: str | None) -> bytes:
    return b"\0" if value is None else uvarint(len(value.encode()) + 1) + value.encode()


def numbers(values: Sequence[int]) -> bytes:
    return uvarint(len(values) + 1) + b"".join(struct.pack(">i", each) for each in values)


def framed(kind: int, version: int, body: bytes) -> bytes:
    return uvarint(1) + uvarint(kind) + uvarint(version) + body


def topic_record(name: str, raw: bytes | None = None) -> bytes:
    return framed(2, 0, text(name) + (raw or topic_id(name)) + b"\0")


def partition_record(
    name: str,
    partition: int,
    replicas: Sequence[int],
    *,
    isr: Sequence[int] = (),
    adding: Sequence[int] = (),
    epoch: int = 3,
) -> bytes:
    """Version 1: with a directory for each replica."""
    body = (
        struct.pack(">i", partition)
        + topic_id(name)
        + numbers(replicas)
        + numbers(isr or replicas)
        + numbers(())
    )
    body += numbers(adding) + struct.pack(">iii", replicas[0], epoch, 7)
    body += uvarint(len(replicas) + 1) + bytes(16) * len(replicas)
    return framed(3, 1, body + b"\0")


def change_record(
    name: str, partition: int, *, leader: int | None = None, isr: Sequence[int] | None = None
) -> bytes:
    tags = []
    if isr is not None:
        tags.append((0, numbers(isr)))
    if leader is not None:
        tags.append((1, struct.pack(">i", leader)))
    tagged = uvarint(len(tags)) + b"".join(uvarint(tag) + uvarint(len(each)) + each for tag, each in tags)
    return framed(5, 0, struct.pack(">i", partition) + topic_id(name) + tagged)


def config_record(kind: int, resource: str, name: str, value: str | None) -> bytes:
    return framed(4, 0, struct.pack(">b", kind) + text(resource) + text(name) + text(value) + b"\0")


def producer_ids_record(next_id: int) -> bytes:
    return framed(15, 0, struct.pack(">iqq", 1, 1, next_id) + b"\0")


def transactional_record(transactional_id: str, status: int) -> tuple[bytes, bytes]:
    """Key and value, version 0, in `__transaction_state`."""
    raw = transactional_id.encode()
    value = (
        struct.pack(">hqhib", 0, 4, 0, 60_000, status)
        + struct.pack(">i", 0)
        + struct.pack(">qq", START, START)
    )
    return struct.pack(">hh", 0, len(raw)) + raw, value


def offset_record(group: str, topic: str, partition: int, offset: int) -> tuple[bytes, bytes]:
    """Key version 1, value version 3, in `__consumer_offsets`."""
    key = struct.pack(">h", 1) + b"".join(
        struct.pack(">h", len(each)) + each.encode() for each in (group, topic)
    )
    value = struct.pack(">hqi", 3, offset, 2) + struct.pack(">h", 4) + b"note" + struct.pack(">q", START)
    return key + struct.pack(">i", partition), value


# Folders


Pair = tuple[bytes | None, bytes | None]


def append(log: DiskLog, data: bytes, epoch: int = 2) -> None:
    log.append([Chunk(data, scan(data), log.log_end_offset, epoch)])


def plain(log: DiskLog) -> None:
    """Batches of two records in several codecs and segments, in two leader epochs."""
    for number in range(ROWS // 2):
        keys = [b"%d" % (2 * number), None]
        data = build_batch(
            keys, [b"value-%d" % number, None], timestamps_ms=START + number,
            headers=[[("h", b"x")], []], compression=("none", "gzip", "lz4", "zstd", "snappy")[number % 5],
        )  # fmt: skip
        append(log, data, 1 if number < 5 else 2)


def transactional(log: DiskLog) -> None:
    for number, commit in enumerate((True, False, True)):
        data = build_batch(
            [None], [b"t-%d" % number], timestamps_ms=START, producer_id=4, producer_epoch=0, base_sequence=number,
            transactional=True,
        )  # fmt: skip
        append(log, data)
        append(log, build_marker(4, 0, committed=commit, coordinator_epoch=1, timestamp_ms=START))


def pairs(*rows: Pair) -> Callable[[DiskLog], None]:
    def fill(log: DiskLog) -> None:
        for key, value in rows:
            append(log, build_batch([key], [value], timestamps_ms=START))

    return fill


def compacted(log: DiskLog) -> None:
    """As `plain`; `cut_short` then takes away what Kafka's cleaner would."""
    plain(log)


def cut_short(folder: Path) -> None:
    """The first segment loses its last batches, with what is in its indexes, and stays short of the next one."""
    first, second, *_ = sorted(folder.glob("*.log"))
    data = first.read_bytes()
    kept = scan(data)[:2]
    assert kept[-1].next_offset < int(second.stem)
    first.write_bytes(data[: kept[-1].position + kept[-1].size_bytes])
    for suffix in (".index", ".timeindex"):
        first.with_suffix(suffix).write_bytes(b"")


@attrs.frozen(kw_only=True)
class Topic:
    """A topic of one partition. `cleaned`: as Kafka's cleaner leaves it."""

    name: str
    fill: Callable[[DiskLog], None]
    config: dict[str, str] = attrs.Factory(dict)
    cleaned: bool = False


TOPICS = (
    Topic(name="plain", fill=plain, config={"retention.ms": "-1", "segment.bytes": "1400000"}),
    Topic(name="squeezed", fill=compacted, config={"cleanup.policy": "compact"}, cleaned=True),
    Topic(name="trans", fill=transactional, config={"compression.type": "lz4"}),
    Topic(name="empty", fill=lambda log: None),
    Topic(
        name="__consumer_offsets",
        fill=pairs(offset_record("readers", "plain", 0, 17)),
        config={"cleanup.policy": "compact"},
    ),
    Topic(
        name="__transaction_state",
        fill=pairs(transactional_record("ours", 1), transactional_record("ours", 4)),
        config={"cleanup.policy": "compact", "compression.type": "uncompressed"},
    ),
)


def records_of(topics: Sequence[Topic], replicas: Sequence[int]) -> list[bytes]:
    found = [framed(0, 1, b"of a broker, which nobody reads"), producer_ids_record(1000)]
    for topic in topics:
        found += [topic_record(topic.name), partition_record(topic.name, 0, replicas)]
        found += [config_record(2, topic.name, name, value) for name, value in topic.config.items()]
    return found


def write_metadata_log(folder: Path, records: Sequence[bytes], *, base: int = 0) -> None:
    """A segment from `base` on; without one a folder has no copy."""
    place = folder / "__cluster_metadata-0"
    place.mkdir(exist_ok=True)
    (place / "partition.metadata").write_text(f"version: 0\ntopic_id: {text_id(bytes(15) + bytes([1]))}")
    if records:
        log = DiskLog(place, "__cluster_metadata", 0, log_start_offset=base)
        append(log, build_batch([None] * len(records), list(records), timestamps_ms=START), 1)
        log.close()


def make(
    folder: Path,
    *,
    node: int = 1,
    replicas: Sequence[int] = (1,),
    topics: Sequence[Topic] = TOPICS,
    records: Sequence[bytes] | None = None,
) -> Path:
    """A folder of broker `node`, which has stopped cleanly."""
    directory = LogDirectory(folder, cluster_id=CLUSTER, node_id=node, settings=SETTINGS)
    marks = {}
    for topic in topics:
        log = directory.open_log(topic.name, 0, create=True, topic_id="0")
        topic.fill(log)
        marks[topic.name, 0] = log.log_end_offset
    directory.close(True, high_watermarks=marks, broker_epoch=12)
    (folder / ".partitions-created").unlink()
    cleaned = [each for each in topics if each.cleaned]
    lines = "".join(f"{each.name} 0 {ROWS}\n" for each in cleaned)
    (folder / "cleaner-offset-checkpoint").write_text(f"0\n{len(cleaned)}\n{lines}")
    (folder / "log-start-offset-checkpoint").write_text("0\n0\n")
    for topic in topics:
        place = folder / f"{topic.name}-0"
        (place / "partition.metadata").write_text(f"version: 0\ntopic_id: {text_id(topic_id(topic.name))}")
        (place / "00000000000000000000.log.deleted").write_bytes(b"of a cleaner that has just run")
        if topic.cleaned:
            cut_short(place)
        if topic.name == "empty":
            # Kafka creates the file when it creates the log, and writes it with the first epoch.
            (place / "leader-epoch-checkpoint").write_bytes(b"")
    write_metadata_log(folder, records_of(topics, replicas) if records is None else records)
    (folder / "gone-0.0123456789abcdef0123456789abcdef-delete").mkdir()
    return folder


def fingerprint(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """All that there is in a folder: modes, times of change, contents."""
    found = {}
    for path in sorted([folder, *folder.rglob("*")]):
        state = path.lstat()
        is_read = stat.S_ISREG(state.st_mode) and state.st_size < 1 << 30
        found[str(path)] = (state.st_mode, state.st_mtime_ns, path.read_bytes() if is_read else b"")
    return found


def properties(folder: Path, content: str = "log.retention.hours=24\nmin.insync.replicas=2\n") -> Path:
    path = folder / "server.properties"
    path.write_bytes(f"# of a broker\nprocess.roles = broker\n{content}".encode())
    return path
