"""Options and offsets, without Spark: what is said is what is read, and what makes no sense is told."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.plugins.spark import OffsetError, OptionError
from insync.plugins.spark._offsets import (
    Bound,
    Range,
    Subscription,
    check_inside,
    check_order,
    ending,
    from_json,
    limited,
    parse_offsets,
    split,
    starting,
    to_json,
)
from insync.plugins.spark._options import SERVERS, Options

KNOWN = ("subscribe", "subscribePattern", "assign", "startingOffsets", "startingTimestamp", "endingOffsets")
offsets = st.dictionaries(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 12)), st.integers(0, 1000))


def options(**given: str) -> Options:
    return Options({name.replace("_", "."): value for name, value in given.items()}, KNOWN)


def test_names_are_sparks_for_kafka_whatever_their_case() -> None:
    for name in ("kafka.bootstrap.servers", "servers", "bootstrap.servers", "KAFKA.Bootstrap.Servers"):
        assert Options({name: "h:1"}, KNOWN).connection().servers == "h:1"
    assert options(SUBSCRIBE="t").text("subscribe") == "t"
    assert "groupIdPrefix" not in Options({"groupIdPrefix": "x", "checkpointLocation": "y"}, KNOWN)


def test_a_job_for_kafka_keeps_its_other_options() -> None:
    given = {
        "kafka.bootstrap.servers": "h:1",
        "kafka.request.timeout.ms": "7000",
        "kafka.security.protocol": "plaintext",
        "kafka.compression.type": "zstd",
        "kafka.max.poll.records": "10",
        "kafka.acks": "1",
        "kafka.group.id": "g",
        "kafka.session.timeout.ms": "10000",
        "fetchOffset.numRetries": "3",
        "fetchOffset.retryIntervalMs": "10",
        "includeHeaders": "true",
        "maxOffsetsPerTrigger": "5",
        "minOffsetsPerTrigger": "5",
        "maxTriggerDelay": "1m",
    }
    assert Options(given, KNOWN).connection().request_timeout_ms == 7000
    assert Options(given, ("compressionType",)).text("compressionType") == "zstd"


@pytest.mark.parametrize(
    ("text", "ms"), [("250", 250), ("90s", 90_000), ("15m", 900_000), ("2 min", 120_000), ("1H", 3_600_000)]
)
def test_times_as_spark_writes_them(text: str, ms: int) -> None:
    known = Options({"maxTriggerDelay": text}, ("maxTriggerDelay",))
    assert known.duration_ms("maxTriggerDelay", 7) == ms
    assert options().duration_ms("maxTriggerDelay", 7) == 7


@pytest.mark.parametrize("text", ["soon", "-5s", "5 weeks", ""])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(OptionError, match="must be a time such as"):
        Options({"maxTriggerDelay": text}, ("maxTriggerDelay",)).duration_ms("maxTriggerDelay", 7)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"subscirbe": "t"}, "unknown option 'subscirbe'; did you mean subscribe?"),
        ({"kafka.security.protocol": "SSL"}, "knows its clients by secretFile"),
        ({"kafka.sasl.mechanism": "PLAIN"}, "knows its clients by secretFile"),
        ({"kafka.auto.offset.reset": "earliest"}, "use startingOffsets"),
        ({"kafka.key.deserializer": "X"}, "unknown option 'kafka.key.deserializer'"),
        ({"path": "/x"}, "take no path"),
        ({"provider": "insync", "subscribe": "t"}, "use CREATE TEMPORARY VIEW"),
        ({"endingTimestamp": "5"}, "a stream has no end"),
        ({"servers": "h:1", "kafka.bootstrap.servers": "h:2"}, "is given twice, as 'h:1' and as 'h:2'"),
        ({"subscribe": "t", "startingTimestamp": str(2**63)}, "at most 9223372036854775807"),
        ({"subscribe": "t", "startingOffsets": f'{{"t":{{"0":{2**63}}}}}'}, "is not an offset"),
        ({"assign": '{"t":[true]}'}, "must be a list"),
        ({}, "exactly one of subscribe, subscribePattern and assign must be given, not none"),
        ({"subscribe": "a", "assign": "{}"}, "not subscribe and assign"),
        ({"subscribe": " "}, "subscribe is empty"),
        ({"subscribe": ", ,"}, "subscribe is ', ,'; it names no topic"),
        ({"subscribe": "t", "startingOffsets": '{"t":{"0":1,"00":5}}'}, "names t-0 twice"),
        ({"subscribePattern": "("}, "not a regular expression"),
        ({"assign": "[1]"}, "must be JSON such as"),
        ({"assign": '{"t":"0"}'}, "must be a list"),
        ({"assign": "{}"}, "names no partition"),
        ({"subscribe": "t", "startingOffsets": "begin"}, "must be earliest, latest or JSON"),
        ({"subscribe": "t", "startingOffsets": '{"t":{"0":-3}}'}, "at least 0"),
        ({"subscribe": "t", "startingOffsets": '{"t":{"0":"1"}}'}, "is not an offset"),
        ({"subscribe": "t", "startingTimestamp": "now"}, "must be a whole number"),
        ({"subscribe": "t", "endingOffsets": "earliest"}, "nothing ends there"),
    ],
)
def test_what_makes_no_sense_is_told(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as caught:
        found = Options(given, KNOWN)
        Subscription.of(found)
        starting(found, "earliest")
        ending(found)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"startingOffsets": '{"t":{"0":1,"1":9}}', "endingOffsets": '{"t":{"0":1,"1":8}}'},
            "endingOffsets: t-1: 8 is before 9, which startingOffsets says",
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"t":{"0":9}}',
                "endingOffsetsByTimestamp": '{"t":{"0":8}}',
            },
            "endingOffsetsByTimestamp: t-0: 8 is before 9, which startingOffsetsByTimestamp says",
        ),
        (
            {"startingTimestamp": "1000", "endingTimestamp": "999"},
            "endingTimestamp=999 is before startingTimestamp=1000",
        ),
        ({"startingOffsets": '{"t":{"0":9}}', "endingOffsets": '{"t":{"0":-1}}'}, ""),
        ({"startingOffsets": '{"t":{"0":9}}', "endingOffsets": '{"t":{"0":9}}'}, ""),
        ({"startingOffsets": '{"t":{"0":-2}}', "endingOffsets": '{"t":{"0":0}}'}, ""),
        ({"startingOffsets": '{"t":{"0":9}}', "endingOffsets": "latest"}, ""),
        ({"startingOffsets": '{"t":{"0":9}}', "endingTimestamp": "5"}, ""),
        ({"startingTimestamp": "5", "endingTimestamp": "5"}, ""),
    ],
)
def test_an_end_before_its_start_is_told(given: dict[str, str], said: str) -> None:
    found = Options({**given, "subscribe": "t"}, (*KNOWN, *given))
    start, end = starting(found, "earliest"), ending(found)
    if not said:
        check_order(start, end)
        return
    with pytest.raises(OptionError, match="give an end that is not before the start") as caught:
        check_order(start, end)
    assert said in str(caught.value)


def test_no_servers() -> None:
    with pytest.raises(OptionError, match=SERVERS):
        options(subscribe="t").connection()


def test_times_go_before_offsets() -> None:
    bound = starting(options(startingTimestamp="5", startingOffsets="latest"), "earliest")
    assert bound.by_time and bound.times([("t", 0), ("t", 1)]) == {("t", 0): 5, ("t", 1): 5}


def test_all_partitions_must_be_named_and_no_others() -> None:
    bound = Bound("startingOffsets", offsets=parse_offsets("x", '{"t":{"0":1,"1":-2}}'))
    assert bound.marks([("t", 0), ("t", 1)]) == {("t", 0): 1, ("t", 1): -2}
    with pytest.raises(OptionError, match=r"leaves out t-2"):
        bound.marks([("t", 0), ("t", 1), ("t", 2)])
    with pytest.raises(OptionError, match=r"names t-1, which"):
        bound.marks([("t", 0)])


def test_offsets_that_do_not_exist_yet() -> None:
    with pytest.raises(OffsetError, match=r"t-0: offset 8 does not exist yet; the log holds \[2, 7\)"):
        check_inside("endingOffsets", {("t", 0): 8}, {("t", 0): 2}, {("t", 0): 7})
    check_inside("endingOffsets", {("t", 0): 7}, {("t", 0): 2}, {("t", 0): 7})


@given(offsets, st.randoms(use_true_random=False))
def test_the_text_of_offsets_depends_on_nothing_but_them(found: dict, dice) -> None:
    shuffled = list(found.items())
    dice.shuffle(shuffled)
    ids = {topic: f"id-{topic}" for topic, _ in found if topic == "a"}
    assert json.dumps(to_json(dict(shuffled), ids)) == json.dumps(to_json(found, ids))
    assert from_json(json.loads(json.dumps(to_json(found, ids)))) == (found, ids)


@given(offsets, st.integers(1, 3000))
def test_a_limit_is_kept_and_always_moves_on(sizes: dict, most: int) -> None:
    start = dict.fromkeys(sizes, 7)
    end = {at: 7 + size for at, size in sizes.items()}
    near = limited(start, end, most)
    assert near.keys() == end.keys()
    assert all(start[at] <= near[at] <= end[at] for at in end)
    assert sum(near[at] - start[at] for at in end) == min(most, sum(sizes.values()))


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 500)), max_size=6),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 200),
)
def test_split_ranges_cover_the_same_offsets(
    sizes: list[tuple[int, int]], least: int | None, most: int | None
) -> None:
    ranges = [Range("t", n, start, start + size) for n, (start, size) in enumerate(sizes)]
    parts = split(ranges, least, most)
    covered = [(part.partition, offset) for part in parts for offset in range(part.start, part.end)]
    assert covered == [(each.partition, offset) for each in ranges for offset in range(each.start, each.end)]
    assert all(len(part) > 0 for part in parts)
    assert most is None or all(len(part) <= most for part in parts)
    if least is not None and sum(map(len, ranges)) >= 50 * least:
        assert len(parts) >= least


def test_a_start_may_be_a_groups() -> None:
    assert starting(options(startingOffsets="group: billing"), "earliest") == Bound(
        "startingOffsets", group="billing"
    )
    assert starting(options(startingOffsets="group:b", startingTimestamp="5"), "earliest").timestamp == 5
    with pytest.raises(OptionError, match="name the consumer group, as in group:billing"):
        starting(options(startingOffsets="group:"), "earliest")
    with pytest.raises(OptionError, match="it must be earliest, latest or JSON"):
        ending(options(endingOffsets="group:b"))
