"""What a consumer reads, and where it begins."""

from __future__ import annotations

import confluent_kafka as ck

from ..record import PATIENCE, Tell
from .clients import NOW, heard_by, make, outcome, reader, write


def ends(tell: Tell) -> None:
    make("ends", 2)
    for partition in range(2):
        write("ends", [b"a", b"b"], partition)
    consumer = reader()
    consumer.assign([ck.TopicPartition("ends", partition, 0) for partition in range(2)])
    seen = heard_by(consumer, ends=2)
    for partition in range(2):
        tell(f"partition {partition}", [each for each in seen if each[1] == partition])
    write("ends", [b"c"], 1)
    tell("one more", heard_by(consumer))
    consumer.seek(ck.TopicPartition("ends", 1, 1))
    tell("after a seek", heard_by(consumer))
    places = [ck.TopicPartition("ends", each) for each in range(2)]
    tell("positions", [each.offset for each in consumer.position(places)])
    tell("watermarks", [list(consumer.get_watermark_offsets(each, timeout=PATIENCE)) for each in places])
    for name, when in (
        ("of the records", NOW),
        ("later", NOW + 1),
        ("before", 0),
        ("end", -1),
        ("start", -2),
    ):
        asked = [ck.TopicPartition("ends", 0, when)]
        tell(
            f"offset for a time: {name}",
            [each.offset for each in consumer.offsets_for_times(asked, timeout=PATIENCE)],
        )
    consumer.assign([ck.TopicPartition("ends", 0, 0)])
    message = consumer.consume(1, PATIENCE)[0]
    tell(
        "record",
        [
            message.key().decode(),
            message.timestamp()[0],
            message.timestamp()[1] - NOW,
            message.headers()[0][0],
            message.leader_epoch() >= 0,
        ],
    )
    tell(
        "no such topic",
        outcome(lambda: consumer.get_watermark_offsets(ck.TopicPartition("no", 0), timeout=9)),
    )
    tell(
        "no such partition",
        outcome(lambda: consumer.get_watermark_offsets(ck.TopicPartition("ends", 9), timeout=9)),
    )
    consumer.close()


def resets(tell: Tell) -> None:
    admin = make("resets")
    write("resets", [b"%d" % number for number in range(5)])
    deleted = admin.delete_records([ck.TopicPartition("resets", 0, 2)])
    tell(
        "deleted up to", [outcome(each.result, lambda done: done.low_watermark) for each in deleted.values()]
    )
    for policy in ("earliest", "latest", "error"):
        for where, offset in (("before the start", 1), ("behind the end", 9), ("at the end", 5)):
            consumer = reader(policy)
            consumer.assign([ck.TopicPartition("resets", 0, offset)])
            tell(f"{policy}, {where}", heard_by(consumer))
            consumer.close()
        consumer = reader(policy, group_id="no-offsets")
        consumer.assign([ck.TopicPartition("resets", 0)])
        tell(f"{policy}, nothing committed", heard_by(consumer))
        consumer.close()


def subscriptions(tell: Tell) -> None:
    consumer = reader(group_id="lost", allow_auto_create_topics=False)
    consumer.subscribe(["nowhere-at-all"])
    tell("no such topic", heard_by(consumer))
    consumer.subscribe(["a b"])
    tell("a name that is none", heard_by(consumer))
    consumer.close()
    make("patterns-1")
    write("patterns-1", [b"x"])
    consumer = reader(group_id="patterns")
    consumer.subscribe(["^patterns-[0-9]"])
    tell("a pattern", heard_by(consumer))
    consumer.close()
