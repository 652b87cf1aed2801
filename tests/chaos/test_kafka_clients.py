"""What Kafka's clients say becomes the history that is judged."""

from __future__ import annotations

import pytest

from .history import History
from .kafka_clients import Told


def heard(*lines: str, acks: str = "all") -> History:
    history = History()
    told = Told("a", acks, history)  # type: ignore[arg-type]
    for line in lines:
        told.hear(line, 5.0)
    return history


def test_acknowledgements_have_place_value_and_time() -> None:
    history = heard("ready", "ack 1 7 3 2000.0", "done 4")
    assert history.acked == {("safe", 1): {7: b"a:3"}}
    assert history.last_ack == {("safe", 1): 5.0}
    assert history.latencies(2.9, 3.1) == [2.0]
    assert (history.sent["all"], history.acknowledged["all"]) == (4, 1)


def test_other_acknowledgements_are_only_counted() -> None:
    history = heard("ready", "ack 1 -1 3 2.0", "failed _MSG_TIMED_OUT", "done 2", acks="0")
    assert not history.acked and not history.failed_all
    assert (history.sent["0"], history.acknowledged["0"]) == (2, 1)


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("TimeoutException", "DeliveryTimeoutError"),
        ("_MSG_TIMED_OUT", "DeliveryTimeoutError"),
        ("OutOfOrderSequenceException", "OutOfOrderSequenceException"),
    ],
)
def test_a_record_that_was_given_up_is_told_from_one_that_was_refused(said: str, kept: str) -> None:
    assert heard("ready", f"failed {said}").failed_all == {kept: 1}


@pytest.mark.parametrize(
    ("lines", "promise"),
    [
        (("saw 0 0 a:0", "saw 0 2 a:2"), "consumers skip and repeat nothing"),
        (("saw 0 0 a:0", "saw 0 0 a:0"), "consumers skip and repeat nothing"),
        (("ack 0 0 0 1.0", "ack 0 0 1 1.0"), "an offset is acknowledged once"),
        (("gone offsets out of range",), "what consumers saw stays"),
    ],
)
def test_what_must_not_be_is_a_violation(lines: tuple[str, ...], promise: str) -> None:
    assert promise in {each.promise for each in heard("ready", *lines).violations}


def test_what_is_right_is_none() -> None:
    assert not heard("ready", "saw 0 0 a:0", "saw 1 0 b:1", "saw 0 1 a:2", "error _TRANSPORT").violations


def test_a_line_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="a says 'panic'"):
        heard("ready", "panic")
