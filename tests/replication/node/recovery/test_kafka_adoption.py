"""`insync adopt`: what a node makes of a folder of Kafka's, what is refused, and what a run leaves that fails.

The folders are made here; `python -m tests.interop.adopt` does the same with a real Kafka.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from insync.replication import BlockingConsumer, BlockingNode, BlockingProducer, NodeSettings
from insync.replication.cli.adopt import _properties
from insync.replication.cli.app import main
from insync.replication.core.control import records as rec
from insync.replication.metadata import Entry, SqliteStore
from insync.replication.wire import decode_record
from insync.storage import LogDirectory, verify
from insync.storage.adoption import identify
from insync.storage.folder._sealed import unsealed_table

from . import kafka_folder as kafka


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kafka.make(tmp_path_factory.mktemp("of-kafka") / "kafka")


@pytest.fixture
def folder(tmp_path: Path, made: Path) -> Path:
    return shutil.copytree(made, tmp_path / "kafka")


def test_a_comment_in_any_language_ends_where_its_line_does(tmp_path: Path, folder: Path) -> None:
    """In ISO 8859-1 some letters of UTF-8 end with what Python takes for the end of a line (NEL)."""
    remark = "# для старых log.retention.hours=1"
    assert "\x85 log" in remark.encode().decode("latin-1")
    path = kafka.properties(tmp_path, f"log.retention.hours=24\r\nlog.dirs: /a\n{remark}\n")
    assert _properties(path) == {"process.roles": "broker", "log.retention.hours": "24", "log.dirs": "/a"}
    meta = folder / "meta.properties"
    known = identify(folder)
    meta.write_bytes(meta.read_bytes() + "# после старых node.id=7\n".encode())
    assert identify(folder) == known


def command(place: Path, *folders: Path, more: tuple[str, ...] = ()) -> list[str]:
    """As an operator gives it; `place` is where all that is made comes to lie."""
    words = ["adopt", "--server-properties", str(kafka.properties(place)), *more]
    for each in folders:
        words += ["--from-kafka", str(each), "--data-dir", str(place / f"data-{each.name}")]
    return words


def store_of(place: Path) -> tuple[str, str]:
    return "--store", f"sqlite://{place}/meta.db"


def stored(place: Path) -> dict[str, Any]:
    """The records of the store."""

    async def entries_of() -> Mapping[str, Entry]:
        async with SqliteStore(place / "meta.db") as store:
            return (await store.list("/")).entries

    entries = trio.run(entries_of)
    classes = {rec.TOPICS_PREFIX: rec.TopicRecord, rec.PARTITIONS_PREFIX: rec.PartitionRecord}
    found: dict[str, Any] = {}
    for key, entry in entries.items():
        cls = next((each for prefix, each in classes.items() if key.startswith(prefix)), None)
        found[key] = decode_record(cls, entry.value) if cls is not None else entry.value
    return found


def settings(place: Path, data: Path, number: int = 1) -> NodeSettings:
    return NodeSettings(
        node_id=number,
        data_dir=data,
        store=f"sqlite://{place}/meta.db",
        listeners=("tcp://127.0.0.1:0",),
    )


def test_a_node_goes_on_with_what_kafka_has_written(tmp_path: Path, folder: Path) -> None:
    before = kafka.fingerprint(folder)
    assert main(command(tmp_path, folder, more=store_of(tmp_path))) == 0
    assert kafka.fingerprint(folder) == before, "Kafka's folder is as it was"
    data = tmp_path / "data-kafka"
    assert not verify(data).defects
    with BlockingNode(settings(tmp_path, data)) as node:
        with BlockingConsumer(node.endpoints, isolation_level="read_committed") as consumer:
            found = {name: read(consumer, name, count) for name, count in (("plain", 40), ("trans", 2))}
            left = read(consumer, "squeezed", 0)
            assert consumer.end_offsets([("squeezed", 0)]) == {("squeezed", 0): 40}
        assert [each[0] for each in found["plain"]] == [*range(40)]
        assert found["plain"][6] == (6, kafka.START + 3, b"6", b"value-3", (("h", b"x"),))
        assert [each[3] for each in found["trans"]] == [b"t-0", b"t-2"], "the aborted one is hidden"
        assert 4 < len(left) < 40, "the offsets that Kafka's cleaner has left out are gone, and nothing else"
        with BlockingProducer(node.endpoints, acks="all") as producer:
            told = producer.send("plain", b"next", partition=0).result(60)
        assert told.offset == 40
        with BlockingConsumer(node.endpoints) as consumer:
            consumer.assign([("plain", 0)])
            consumer.seek(("plain", 0), 39)
            epochs = [each.leader_epoch for each in rows(consumer, 2)]
        assert epochs[0] == 2 and epochs[1] > 3, (
            "above the epoch in Kafka's metadata, of which no record is there"
        )


def read(consumer: BlockingConsumer, topic: str, count: int) -> list[tuple[Any, ...]]:
    """All of partition 0. count: how many there are; with 0 up to the end."""
    consumer.assign([(topic, 0)])
    consumer.seek((topic, 0), 0)
    end = consumer.end_offsets([(topic, 0)])[(topic, 0)]
    found: list[Any] = []
    while len(found) < count if count else (not found or found[-1].offset < end - 1):
        found += consumer.poll(60_000)
    return [(each.offset, each.timestamp_ms, each.key, each.value, each.headers) for each in found]


def rows(consumer: BlockingConsumer, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        found += consumer.poll(60_000)
    return found


def test_the_store_says_what_kafkas_metadata_says(tmp_path: Path, folder: Path) -> None:
    records = kafka.records_of(kafka.TOPICS, (1,))
    records += [
        kafka.config_record(4, "", "log.retention.bytes", "5000000"),
        kafka.config_record(2, "plain", "max.message.bytes", "77777"),
        kafka.change_record("plain", 0, leader=1),
    ]
    shutil.rmtree(folder / "__cluster_metadata-0")
    kafka.write_metadata_log(folder, records)
    assert main(command(tmp_path, folder, more=store_of(tmp_path))) == 0
    found = stored(tmp_path)
    topic, partition = found["/topics/plain"], found["/partitions/plain/0"]
    assert topic.topic_id == kafka.topic_id("plain").hex()
    config = topic.config
    assert (config.retention_ms, config.retention_bytes, config.max_message_bytes) == (-1, 5_000_000, 77_777)
    assert config.min_insync_replicas == 1, "no more than there are replicas"
    assert found["/topics/trans"].config.retention_ms == 86_400_000, "by the broker's file"
    assert found["/topics/squeezed"].was_compacted and not topic.was_compacted
    assert found["/topics/__consumer_offsets"].config.max_message_bytes == 16 << 20
    assert (partition.leader, partition.isr, partition.replicas) == (-1, (1,), (1,))
    assert partition.leader_epoch == 4, "that of the last change"
    assert b"1000" in found[rec.PRODUCER_IDS_KEY], "the first producer id that nobody has"


def test_groups_go_on_where_they_have_committed(tmp_path: Path, folder: Path) -> None:
    assert main(command(tmp_path, folder, more=store_of(tmp_path))) == 0
    with (
        BlockingNode(settings(tmp_path, tmp_path / "data-kafka")) as node,
        BlockingConsumer(node.endpoints, group_id="readers", auto_offset_reset="earliest") as consumer,
    ):
        consumer.subscribe(["plain"])
        assert rows(consumer, 1)[0].offset == 17


# What is refused


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def flip(folder: Path) -> None:
    path = min((folder / "plain-0").glob("*.log"))
    data = bytearray(path.read_bytes())
    data[80] ^= 1
    path.write_bytes(data)


def old_format(folder: Path) -> None:
    path = min((folder / "plain-0").glob("*.log"))
    data = bytearray(path.read_bytes())
    data[16] = 1
    path.write_bytes(data)


def torn(folder: Path) -> None:
    path = max((folder / "plain-0").glob("*.log"))
    path.write_bytes(path.read_bytes()[:-10])


def lost_end(folder: Path) -> None:
    """The last batch, whole, as a disk loses it that was not synced."""
    from insync.storage.batch import scan

    path = max((folder / "plain-0").glob("*.log"))
    data = path.read_bytes()
    path.write_bytes(data[: scan(data)[-1].position])


def not_flushed(folder: Path) -> None:
    path = folder / "recovery-point-offset-checkpoint"
    text = unsealed_table(path.read_bytes())
    assert text is not None
    path.write_text(text.replace("plain 0 40", "plain 0 30"))


def of_zookeeper(folder: Path) -> None:
    (folder / "meta.properties").write_text("version=0\nbroker.id=1\ncluster.id=x\n")


def metadata(*more: bytes, without: bool = False) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        shutil.rmtree(folder / "__cluster_metadata-0")
        if not without:
            kafka.write_metadata_log(folder, [*kafka.records_of(kafka.TOPICS, (1,)), *more])

    return change


def hanging(topic: kafka.Topic) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        shutil.rmtree(folder)
        kafka.make(folder, topics=[*(each for each in kafka.TOPICS if each.name != topic.name), topic])

    return change


def begun(log: Any) -> None:
    from insync.storage.batch import build_batch

    kafka.transactional(log)
    data = build_batch(
        [None],
        [b"open"],
        timestamps_ms=1,
        producer_id=9,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    kafka.append(log, data)


def in_place_of(name: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return spoil


REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "not_clean": (remove(".kafka_cleanshutdown"), r"no .kafka_cleanshutdown.*stop it cleanly"),
    "no_folder_of_kafkas": (remove("meta.properties"), r"has no meta.properties: name one of .* log.dirs"),
    "zookeeper": (of_zookeeper, r"ZooKeeper: migrate"),
    "damaged": (flip, r"plain-0/0+\.log at 0 .*copy the partition again"),
    "torn": (torn, r"plain-0/\d+\.log at \d+"),
    "end_lost": (lost_end, r"had reached the device, but the log ends before"),
    "end_not_written_down": (not_flushed, r"plain-0 ends at offset 40, and its broker wrote down 30"),
    "old_format": (old_format, r"plain-0 holds 0+\.log in message format 1, of before Kafka 0\.11: copy"),
    "cleaner_at_work": (
        lambda folder: (folder / "plain-0" / f"{0:020}.log.swap").touch(),
        r"holds 0+\.log\.swap",
    ),
    "moving_between_disks": (
        lambda folder: (folder / "plain-0.0123456789abcdef0123456789abcdef-future").mkdir(),
        r"-future is a log",
    ),
    "no_topic_id": (remove("plain-0/partition.metadata"), r"plain-0 names no topic id"),
    "no_producers": (remove("plain-0/00000000000000000040.snapshot"), r"no sound 0+40\.snapshot"),
    "metadata_elsewhere": (metadata(without=True), r"metadata\.log\.dir with --metadata"),
    "reassigned": (
        metadata(kafka.partition_record("plain", 0, (1, 2), adding=(2,))),
        r"plain-0 is being reassigned.*--cancel",
    ),
    "replica_elsewhere": (
        metadata(kafka.partition_record("plain", 0, (1, 2))),
        r"plain-0 has replicas on brokers 2, whose folders",
    ),
    "in_sync_elsewhere": (
        metadata(kafka.partition_record("empty", 0, (1,), isr=(7,))),
        r"empty-0 has no log of a replica in sync \(7\)",
    ),
    "tiered": (
        metadata(kafka.config_record(2, "plain", "remote.storage.enable", "true")),
        r"plain has remote.*MirrorMaker",
    ),
    "times_of_the_broker": (
        metadata(kafka.config_record(2, "plain", "message.timestamp.type", "LogAppendTime")),
        r"set CreateTime",
    ),
    "setting_unknown": (
        metadata(kafka.config_record(2, "plain", "new.thing", "1")),
        r"plain has new\.thing=1, which",
    ),
    "setting_wrong": (
        metadata(kafka.config_record(2, "plain", "segment.ms", "0")),
        r"plain: segment_ms=0: use 1 to",
    ),
    "broker_of_its_own": (
        metadata(kafka.config_record(4, "1", "log.retention.ms", "5")),
        r"broker 1 has a setting .* retention\.ms: remove",
    ),
    "topic_made_again": (
        metadata(kafka.framed(9, 0, kafka.topic_id("plain") + b"\0"), kafka.topic_record("plain", bytes(16))),
        r"holds plain-0, whose topic id \w+ the cluster's metadata does not know",
    ),
    "later_kafka": (metadata(kafka.framed(99, 0, b"")), r"type 99, .* of a later Kafka"),
    "metadata_malformed": (metadata(kafka.framed(2, 0, b"\x09x")), r"type 2 is malformed"),
    "transaction_in_a_log": (
        hanging(kafka.Topic(name="trans", fill=begun)),
        r"trans-0 holds an open transaction of producer 9",
    ),
    "transaction_at_its_coordinator": (
        hanging(attrs.evolve(kafka.TOPICS[-1], fill=kafka.pairs(kafka.transactional_record("ours", 2)))),
        r"the transaction of 'ours' has not ended",
    ),
    "fifo": (in_place_of(f"plain-0/{0:020}.index", os.mkfifo), r"0\.index is no file and no folder"),
    "fifo_as_lock": (in_place_of(".lock", os.mkfifo), r"\.lock is no file and no folder"),
    "device": (
        in_place_of("log-start-offset-checkpoint", lambda path: path.symlink_to("/dev/zero")),
        r"checkpoint is no file and no folder",
    ),
    "link_to_nothing": (
        in_place_of("plain-0/leader-epoch-checkpoint", lambda path: path.symlink_to(path)),
        r"checkpoint is no file and no folder",
    ),
    "endless": (
        lambda folder: os.truncate(folder / "meta.properties", 1 << 40),
        r"meta\.properties has 1099511627776 bytes, which no broker",
    ),
    "endless_snapshot": (
        lambda folder: os.truncate(folder / "plain-0" / f"{40:020}.snapshot", 1 << 40),
        r"\.snapshot has 1099511627776 bytes, which no broker",
    ),
    "no_text": (
        lambda folder: (folder / "meta.properties").write_bytes(b"\xff\xfe" * 40),
        r"meta\.properties lacks cluster\.id",
    ),
    "gap_in_what_is_not_compacted": (
        hanging(kafka.Topic(name="squeezed", fill=kafka.compacted, cleaned=True)),
        r"squeezed-0/\d+\.log",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_folder_that_is_not_clean_is_refused(
    case: str, tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, told = REFUSED[case]
    spoil(folder)
    before = kafka.fingerprint(folder)
    assert main(command(tmp_path, folder, more=store_of(tmp_path))) == 1
    said = capsys.readouterr().err
    assert re.search(told, said), said
    assert "unexpected" not in said
    assert kafka.fingerprint(folder) == before
    assert not [each for each in tmp_path.iterdir() if each.name.startswith("data-")]


def test_settings_are_read_as_java_reads_them(tmp_path: Path, folder: Path) -> None:
    with (folder / "meta.properties").open("ab") as file:
        file.write(b"#gr\xfc\xdfe\n")
    words = command(tmp_path, folder, more=store_of(tmp_path))
    with kafka.properties(tmp_path).open("ab") as file:
        file.write(b"\n# gr\xfc\xdfe\n")
    assert main(words) == 0


def test_a_topic_that_was_compacted_once_is_named(tmp_path: Path, folder: Path) -> None:
    spoil, _ = REFUSED["gap_in_what_is_not_compacted"]
    spoil(folder)
    more = (*store_of(tmp_path), "--was-compacted", "squeezed")
    assert main(command(tmp_path, folder, more=more)) == 0
    assert not verify(tmp_path / "data-kafka").defects


def test_a_broker_that_runs_keeps_its_folder(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kafka's lock is one of the process, so another process takes it here."""
    import subprocess
    import sys

    held = "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True)"
    held += "; input()"
    with subprocess.Popen(
        [sys.executable, "-c", held, str(folder / ".lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        try:
            assert holder.stdout is not None
            holder.stdout.readline()
            assert main(command(tmp_path, folder, more=store_of(tmp_path))) == 1
        finally:
            holder.kill()
    assert "a running broker holds its lock" in capsys.readouterr().err


def test_check_copies_and_writes_nothing(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["adopt", "--from-kafka", str(folder), "--server-properties", str(kafka.properties(tmp_path))]
    assert main([*words, "--check", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["topics"] == told["partitions"] == len(kafka.TOPICS)
    assert told["without_effect"] == ["trans: compression.type=lz4"]
    assert {each.name for each in tmp_path.iterdir()} == {"kafka", "server.properties"}


def test_a_copy_has_a_folder_of_its_own(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = kafka.fingerprint(folder)
    words = ["adopt", "--server-properties", str(kafka.properties(tmp_path)), *store_of(tmp_path)]
    words += ["--from-kafka", str(folder), "--data-dir"]
    assert main([*words, str(folder / "new")]) == 1
    assert "is Kafka's: name another --data-dir" in capsys.readouterr().err
    brokers = ["adopt", *words[1:-3]]
    for each in three(tmp_path):
        brokers += ["--from-kafka", str(each), "--data-dir", str(tmp_path / "a")]
    assert main(brokers) == 1
    assert "is named twice as --data-dir" in capsys.readouterr().err
    assert kafka.fingerprint(folder) == before
    assert main(words[:-1]) == 2
    assert "each folder needs one" in capsys.readouterr().err


# Several brokers


def three(place: Path, *, in_sync: tuple[int, ...] = (1, 2), committed: int = 30) -> list[Path]:
    """Broker 3 stopped first: it lacks the last batches of `plain`; the metadata log of broker 1 is an old one."""
    found = []
    for node in (1, 2, 3):
        topics = list(kafka.TOPICS)
        records = kafka.records_of(topics, (1, 2, 3))
        if node == 2:
            records.append(kafka.change_record("plain", 0, leader=2, isr=in_sync))
        if node == 3:
            topics[0] = attrs.evolve(topics[0], fill=shorter)
        folder = kafka.make(place / f"kafka-{node}", node=node, topics=topics, records=records)
        marks = folder / "replication-offset-checkpoint"
        marks.write_text(re.sub(r"plain 0 \d+", f"plain 0 {committed}", marks.read_text()))
        found.append(folder)
    return found


def shorter(log: Any) -> None:
    whole = []

    class Taken:
        log_end_offset = 0

        def append(self, chunks: Any) -> None:
            whole.extend(chunks)
            self.log_end_offset = chunks[-1].base_offset + sum(
                each.last_offset_delta + 1 for each in chunks[-1].batches
            )

    kafka.plain(Taken())  # type: ignore[arg-type]
    for each in whole[:-3]:
        log.append([each])


@pytest.mark.parametrize("apart", [False, True])
def test_the_most_complete_logs_lead(tmp_path: Path, apart: bool) -> None:
    folders = three(tmp_path)
    if apart:
        told = []
        for each in folders:
            # Each on a machine of its own, with none but its own metadata.
            told.append(str(tmp_path / f"{each.name}.json"))
            assert main(command(tmp_path, each, more=("--evidence", told[-1]))) == 0
        assert main(["adopt", *store_of(tmp_path), *told]) == 0
    else:
        assert main(command(tmp_path, *folders, more=store_of(tmp_path))) == 0
    found = stored(tmp_path)
    assert found["/partitions/plain/0"].isr == (1, 2)
    assert found["/partitions/plain/0"].leader_epoch == 4, "by the latest copy of the metadata"
    assert found["/partitions/trans/0"].isr == (1, 2, 3)
    for each in folders:
        directory = LogDirectory(
            tmp_path / f"data-{each.name}", cluster_id=kafka.CLUSTER, node_id=int(each.name[-1])
        )
        assert directory.was_clean
        directory.close(False)


def test_who_lacks_what_is_committed_does_not_lead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though Kafka's metadata has it in sync: that of another copy of the folder, perhaps."""
    folders = three(tmp_path, in_sync=(3,), committed=40)
    assert main(command(tmp_path, *folders, more=store_of(tmp_path))) == 1
    assert "plain-0 has no log of a replica in sync (3)" in capsys.readouterr().err


def test_brokers_that_do_not_belong_together_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = three(tmp_path)
    assert main(command(tmp_path, *folders[:2], more=store_of(tmp_path))) == 1
    assert "plain-0 has replicas on brokers 3" in capsys.readouterr().err
    for path in [folders[1] / "meta.properties"]:
        path.write_text(path.read_text().replace(kafka.CLUSTER, "another"))
    assert main(command(tmp_path, *folders, more=store_of(tmp_path))) == 1
    assert "several clusters" in capsys.readouterr().err
    assert main(command(tmp_path, folders[0], folders[0], more=store_of(tmp_path))) == 1
    assert "given twice" in capsys.readouterr().err
