"""Events that differ on purpose, by client, job and event, with the reason; docs/kafka.md has them, too."""

from __future__ import annotations

_NO_TOPIC = "of two reasons nodes name that the topic does not exist, and Kafka that the setting is bad"
ALLOWED: dict[str, str] = {
    "librdkafka: settings: no.such.setting=1 of nowhere": _NO_TOPIC,
    "librdkafka: settings: retention.ms=soon of nowhere": _NO_TOPIC,
    "librdkafka: settings: retention.ms=-5 of nowhere": _NO_TOPIC,
    "librdkafka: settings: segment.bytes=0 of nowhere": _NO_TOPIC,
    "kafka-python: rights: writer describes a group": (
        "who may only write finds a group's coordinator, because a transaction may commit offsets; kafka-python "
        "then tells of a group without a state"
    ),
    "librdkafka: records and leaders: greatest of kept-0": (
        "of records with the greatest timestamp nodes name the first that is still there, Kafka a deleted one"
    ),
}
