"""Jobs that read and write topics of running nodes."""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from insync.plugins.spark import SparkMissingError
from insync.replication import BlockingAdmin, BlockingConsumer, BlockingProducer
from insync.replication.client import ConsumerRecord, UnknownTopicError
from insync.storage.batch import build_batch
from tests.requires import missing

from . import data_folders as data

try:
    import pyarrow as pa
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    from insync.plugins.spark.pipeline import (
        FolderInput,
        InputError,
        PipelineError,
        TopicInput,
        dedupe,
        export,
        load,
        stats,
    )
except (ImportError, SparkMissingError) as error:
    missing(str(error))

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def read(servers: str, topic: str) -> list[ConsumerRecord]:
    with BlockingConsumer(servers, auto_offset_reset="earliest") as consumer:
        partitions = consumer.assign_topic(topic)
        missing = sum(consumer.end_offsets(partitions).values())
        found: list[ConsumerRecord] = []
        while len(found) < missing:
            found += consumer.poll(5000)
    return found


def produce(servers: str, topic: str, rows: Iterable[tuple[bytes | None, bytes, int]]) -> None:
    with BlockingProducer(servers) as producer:
        for key, value, partition in rows:
            producer.send(topic, value, key=key, partition=partition)


def test_lines_become_records(
    spark: SparkSession, admin: BlockingAdmin, servers: str, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, 3, 3)
    lines = [f"line {at} ü" for at in range(500)]
    (tmp_path / "a.txt").write_text("\n".join(lines[:200]) + "\n")
    (tmp_path / "b.txt").write_text("\n".join(lines[200:]))
    report = load(spark, [tmp_path / "a.txt", tmp_path / "b.txt"], servers, topic)
    found = read(servers, topic)
    assert sorted(record.value.decode() for record in found if record.value) == sorted(lines)
    assert (report.records, report.bytes) == (500, sum(len(line.encode()) for line in lines))
    assert all(record.key is None for record in found)


def test_columns_become_keys_and_values(
    spark: SparkSession, admin: BlockingAdmin, servers: str, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, 3, 3)
    rows = [{"id": at, "who": f"w{at % 5}", "raw": bytes([at, 255])} for at in range(100)]
    (tmp_path / "t.csv").write_text("id;who\n" + "".join(f"{row['id']};{row['who']}\n" for row in rows))
    load(spark, [tmp_path / "t.csv"], servers, topic, format="csv", key="who", options={"sep": ";"})
    found = read(servers, topic)
    assert sorted((record.key, json.loads(record.value or b"")["id"]) for record in found) == sorted(
        (str(row["who"]).encode(), str(row["id"])) for row in rows
    )
    for key in {record.key for record in found}:
        same = [record for record in found if record.key == key]
        assert len({record.partition for record in same}) == 1
        ids = [int(json.loads(record.value or b"")["id"]) for record in sorted(same, key=lambda r: r.offset)]
        assert ids == sorted(ids)

    before = len(found)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    load(spark, [tmp_path / "t.parquet"], servers, topic, format="parquet", key="id", value=["raw"])
    (tmp_path / "t.json").write_text('{"a": {"b": "x"}, "c": 1}\n{"c": 2}\n')
    load(spark, [tmp_path / "t.json"], servers, topic, format="json", key="a.b")
    pairs = {(record.key, record.value) for record in read(servers, topic)}
    assert {(b"7", bytes([7, 255])), (b"x", b'{"a": {"b": "x"}, "c": 1}'), (None, b'{"c": 2}')} <= pairs
    assert len(read(servers, topic)) == before + 102


def test_csv_as_rfc_4180_has_it(
    spark: SparkSession, admin: BlockingAdmin, servers: str, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, 1, 3)
    rows = [
        {"id": "1", "text": 'two\nlines, and "quotes"'},
        {"id": "2", "text": "a\r\nline end of Windows"},
        {"id": "3", "text": 'a \\backslash\\ and a "'},
        {"id": "4", "text": " ,;\t "},
        {"id": "5", "text": "ü" * 200_000},
    ]
    place = tmp_path / "50% of a + ü"
    place.mkdir()
    with (place / "t.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["id", "text"], quoting=csv.QUOTE_ALL)
        writer.writeheader()
        writer.writerows(rows)
    with gzip.open(place / "u.csv.gz", "wt", newline="") as packed:
        packed.write('id,text\r\n6,"packed ""\n"""\r\n')
    assert load(spark, [place], servers, topic, format="csv").records == 6
    found = [json.loads(record.value or b"") for record in read(servers, topic)]
    # Spark ends the lines of a field by \n where the file ends its lines by \r\n.
    rows[1]["text"] = "a\nline end of Windows"
    expected = [*rows, {"id": "6", "text": 'packed "\n"'}]
    assert sorted(found, key=lambda row: row["id"]) == expected


def test_another_dialect_of_csv_is_its_user_s(
    spark: SparkSession, admin: BlockingAdmin, servers: str, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, 1, 3)
    (tmp_path / "t.csv").write_text('id|text\n1|"a \\"b\\" c"\n2|\'d|e\n')
    options = {"sep": "|", "escape": "\\", "mode": "PERMISSIVE"}
    load(spark, [tmp_path / "t.csv"], servers, topic, format="csv", value=["text"], options=options)
    (tmp_path / "u.csv").write_bytes("id;text\n3;'ü;\n'\n".encode("latin-1"))
    options = {"Delimiter": ";", "quote": "'", "encoding": "iso-8859-1"}
    load(spark, [tmp_path / "u.csv"], servers, topic, format="csv", value=["text"], options=options)
    assert [record.value for record in read(servers, topic)] == [b'a "b" c', b"'d", "ü;\n".encode()]


PRETTY = json.dumps([{"id": at, "who": {"name": f"w{at}"}} for at in range(3)], indent=1)


@pytest.mark.parametrize(
    ("format", "text", "said"),
    [
        ("json", PRETTY, r"line 1 is no JSON object \(Expecting value.*: '\['; .* jq -c '\.\[\]' FILE"),
        (
            "json",
            '{\n "a": 1\n}\n',
            r"line 1 is no JSON object \(Expecting property.*: '\{'; .* jq -c '\.' FILE",
        ),
        ("json", '\n{"a": 1}\n\n{"a": 2}}\n', r"line 4 is no JSON object \(Extra data.*: '\{\"a\": 2\}\}'"),
        (
            "json",
            '{"a": 1}\n[{"a": 2}]\n',
            r"line 2 is no JSON object \(it is a JSON array\): '\[\{\"a\": 2\}\]'",
        ),
        ("json", '{"a": 1}\n7\n', r"line 2 is no JSON object \(it is a JSON number\): '7'"),
        (
            "csv",
            'id,who\n1,"a\nb"\n2,"c\n3,d\n',
            r"line 4 begins a row that is no csv \(unexpected end of data\)",
        ),
        ("csv", 'id,who\n1,"a "b""\n', r"line 2 begins a row .*'escape=\\'"),
        (
            "csv",
            'id,who\n1,"a\nb"\n2,c,d\n',
            r"line 4 has 3 fields, and the header has 2 \(id,who\): '2,c,d'",
        ),
        ("csv", "id,who\n1,a\n2\n", r"line 3 has 1 field, and the header has 2 \(id,who\): '2'"),
    ],
    ids=[
        "array",
        "indented",
        "behind",
        "array-line",
        "number",
        "open-quote",
        "inner-quote",
        "longer",
        "shorter",
    ],
)
def test_files_that_are_not_of_their_format(
    spark: SparkSession,
    admin: BlockingAdmin,
    servers: str,
    topic: str,
    tmp_path: Path,
    format: Literal["csv", "json"],
    text: str,
    said: str,
) -> None:
    admin.create_topic(topic, 1, 3)
    good = {"csv": "id,who\n8,x\n", "json": '{"a": 0}\n'}[format]
    (tmp_path / "a").write_text(good)
    (tmp_path / "b").write_text(text)
    with pytest.raises(InputError, match=f"b, {said}") as caught:
        load(spark, [tmp_path / "a", tmp_path / "b"], servers, topic, format=format)
    assert "nothing was written" in str(caught.value) and len(str(caught.value)) < 500
    assert read(servers, topic) == []


@pytest.mark.parametrize(
    "text", [PRETTY, '{"a": 1}\n[{"a": 2}]\n', '{"a": 1}\n{"a":\n2}\n'], ids=["1", "2", "3"]
)
def test_files_that_only_spark_can_open(
    spark: SparkSession,
    admin: BlockingAdmin,
    servers: str,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
) -> None:
    """Nothing has looked through them before, so that the load fails where it comes to such a line."""
    monkeypatch.setattr("insync.plugins.spark.pipeline._load.check_lines", lambda *given: None)
    admin.create_topic(topic, 1, 3)
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(
        Exception, match="a line is no JSON object, and lines before it may have been written"
    ):
        load(spark, [tmp_path / "t.json"], servers, topic, format="json")


def test_blank_lines_between_objects_are_no_records(
    spark: SparkSession, admin: BlockingAdmin, servers: str, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, 1, 3)
    (tmp_path / "t.json").write_text('\n{"a": 1}\r\n  \n {"a": [2]}\n\n')
    load(spark, [tmp_path / "t.json"], servers, topic, format="json")
    assert [record.value for record in read(servers, topic)] == [b'{"a": 1}', b' {"a": [2]}']


def test_a_load_that_failed_goes_on_where_it_stopped(
    spark: SparkSession,
    admin: BlockingAdmin,
    servers: str,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One line is too long for the topic; when it is let in, those before it are not written again."""
    monkeypatch.setattr("insync.plugins.spark.pipeline._writing.BATCH_BYTES", 4096)
    admin.create_topic(topic, 2, 3, {"max_message_bytes": 10_000})
    lines = [f"line {at}".ljust(100, ".") for at in range(5000)] + ["long".ljust(50_000, ".")]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    with pytest.raises(Exception, match="max_message_bytes"):
        load(spark, [tmp_path / "a.txt"], servers, topic)
    with BlockingConsumer(servers) as consumer:
        written = sum(consumer.end_offsets(consumer.assign_topic(topic)).values())
    assert 0 < written < len(lines)
    admin.alter_config(topic, {"max_message_bytes": 100_000})
    splits = spark.conf.get("spark.sql.files.maxPartitionBytes")
    assert load(spark, [tmp_path / "a.txt"], servers, topic).records == len(lines)
    assert spark.conf.get("spark.sql.files.maxPartitionBytes") == splits
    assert sorted((row.value or b"").decode() for row in read(servers, topic)) == sorted(lines)
    load(spark, [tmp_path / "a.txt"], servers, topic)
    assert len(read(servers, topic)) == 2 * len(lines), "what was done is another load"


def test_what_cannot_be_loaded(
    spark: SparkSession, admin: BlockingAdmin, servers: str, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text("id,who\n1,a\n")
    with pytest.raises(UnknownTopicError):
        load(spark, [tmp_path / "t.csv"], servers, "nowhere-" + topic)
    admin.create_topic(topic, 1, 3)
    with pytest.raises(InputError, match="does not exist"):
        load(spark, [tmp_path / "other.csv"], servers, topic)
    with pytest.raises(InputError, match="there is no column 'customer'; there are id, who"):
        load(spark, [tmp_path / "t.csv"], servers, topic, format="csv", key="customer")


def test_a_topic_is_exported_and_counted(
    spark: SparkSession, admin: BlockingAdmin, servers: str, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, 2, 3)
    rows: list[tuple[bytes | None, bytes, int]] = [
        (b"k%d" % (at % 3), b"%d" % at, at % 2) for at in range(200)
    ]
    produce(servers, topic, rows)
    source, out = TopicInput(servers, topic), tmp_path / "out"
    assert export(spark, source, out).rows == 200
    produce(servers, topic, [(None, b"late", 1)])
    assert export(spark, source, out).rows == 1
    table = ds.dataset(out, partitioning="hive", ignore_prefixes=["_", "."]).to_table()
    found = sorted(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
    assert found == [(0, at) for at in range(100)] + [(1, at) for at in range(101)]
    assert sorted(table["value"].to_pylist()) == sorted([row[1] for row in rows] + [b"late"])
    report = stats(spark, source)
    assert (report.records, report.keys, report.late) == (201, 4, 0)


def test_the_first_of_each_identity_is_kept(
    spark: SparkSession, admin: BlockingAdmin, servers: str, topic: str
) -> None:
    """Every third order was sent twice, some into the other partition."""
    admin.create_topic(topic, 2, 3)
    admin.create_topic(f"{topic}-once", 2, 3)
    rows: list[tuple[bytes | None, bytes, int]] = []
    for at in range(60):
        rows.append((b"k%d" % (at % 4), b'{"order": {"id": %d}}' % at, 0))
        if at % 3 == 0:
            rows.append((b"again", b'{"order": {"id": %d}}' % at, at % 2))
    rows.append((None, b"no order", 1))
    rows.append((None, b"no order", 1))
    produce(servers, topic, rows)
    source = TopicInput(servers, topic)
    report = dedupe(spark, source, by="json:order.id", to_topic=f"{topic}-once")
    assert (report.records, report.unidentified, report.duplicates, report.kept) == (82, 2, 20, 62)
    assert report.identities == 60
    assert all(each.partition == 1 or each.first_offset < each.offset for each in report.examples)
    found = read(servers, f"{topic}-once")
    first = sorted((record for record in found if record.partition == 0), key=lambda record: record.offset)
    assert [json.loads(record.value or b"")["order"]["id"] for record in first] == list(range(60))
    assert [record.value for record in found if record.partition == 1] == [b"no order"] * 2
    assert not report.written_before
    repeated = dedupe(spark, source, by="json:order.id", to_topic=f"{topic}-once")
    assert (repeated.kept, repeated.written_before) == (62, True)
    after = read(servers, f"{topic}-once")
    assert Counter(after) == Counter(found), "the same job has written twice"
    again = dedupe(spark, TopicInput(servers, f"{topic}-once"), by="json:order.id")
    assert (again.duplicates, again.kept) == (0, 62)
    with pytest.raises(PipelineError, match="cannot be written to while it is read"):
        dedupe(spark, source, by="key", to_topic=topic)
    with pytest.raises(PipelineError, match="name a data folder"):
        dedupe(spark, source, by="sequence")
    with pytest.raises(InputError, match="'colour' does not distinguish records"):
        dedupe(spark, source, by="colour")


def test_a_batch_that_was_appended_twice(spark: SparkSession, tmp_path: Path) -> None:
    """As a producer without a sequence check would leave it; only the sequence tells, and only of its producer."""

    def batch(base: int, producer_id: int = 7) -> tuple[int, bytes]:
        return 0, build_batch(
            [None] * 5,
            [b"same"] * 5,
            timestamps_ms=data.TIME_MS,
            producer_id=producer_id,
            producer_epoch=1,
            base_sequence=base,
        )

    plain = (0, build_batch([None] * 3, [b"same"] * 3, timestamps_ms=data.TIME_MS))
    content = [batch(0), batch(5), plain, batch(5), batch(0, 8), batch((1 << 31) - 2), plain]
    folder = data.write_folder(tmp_path / "node-1", 1, {0: content})
    report = dedupe(spark, FolderInput(folder, data.TOPIC), to_parquet=tmp_path / "once")
    # The last but one wraps: its sequences 2147483646, 2147483647, 0, 1, 2 repeat those of the first.
    assert (report.records, report.unidentified, report.duplicates) == (31, 6, 8)
    assert [(each.first_offset, each.offset) for each in report.examples] == [
        (5, 13),
        (6, 14),
        (7, 15),
        (8, 16),
        (9, 17),
        (0, 25),
        (1, 26),
        (2, 27),
    ]
    with pytest.raises(PipelineError, match="once exists already"):
        dedupe(spark, FolderInput(folder, data.TOPIC), to_parquet=tmp_path / "once")
    kept = ds.dataset(tmp_path / "once", ignore_prefixes=["_", "."]).to_table()
    assert sorted(kept["offset"].to_pylist()) == [*range(13), *range(18, 25), *range(28, 31)]
