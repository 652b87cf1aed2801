import math
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from insync.transport._payload import bytes_payload
from insync.transport.connections.session import Session
from insync.transport.errors import (
    ConnectionLost,
    DeadlineExceeded,
    Overloaded,
    PeerGoingAway,
    ProtocolError,
    RemoteError,
)
from insync.transport.frames import (
    HEADER_SIZE,
    PAYLOAD_CRC,
    FrameType,
    Limits,
    Status,
    crc32c,
    decode_frame,
    decode_header,
)
from insync.transport.kit._frame import FileSlice
from insync.transport.requests import Response


class Side:
    """A session with a clock of its own, whose handler keeps the requests."""

    def __init__(self, *, dialer, limits=Limits()):  # noqa: B008 - frozen
        self.limits = limits
        self.requests = []
        self.session = Session(dialer=dialer, limits=limits, peer="peer", on_request=self.requests.append)

    def ask(self, body=b"", *, now=0.0, timeout=math.inf):
        answers = []
        pending = self.session.request(
            1, body, (), deadline=now + timeout, now=now, max_response=100, on_done=answers.append
        )
        return pending, answers

    def sent(self):
        frames = []
        while self.session.outbox:
            out = self.session.outbox.popleft()
            payload = b"".join(map(bytes, out.parts))
            frames.append(decode_frame(memoryview(out.head), bytes_payload(payload), self.limits))
        self.session.outbox_bytes = 0
        return frames


def flow(one, other, now=0.0):
    """Carry what both have to say, until both are silent."""
    while one.session.outbox or other.session.outbox:
        for frame in one.sent():
            other.session.receive(frame, now)
        for frame in other.sent():
            one.session.receive(frame, now)


@pytest.fixture
def sides():
    return Side(dialer=True), Side(dialer=False)


def test_numbers_are_odd_for_the_dialer_and_even_for_the_acceptor(sides):
    for side, expected in zip(sides, ([1, 3, 5], [2, 4, 6]), strict=True):
        for _ in range(3):
            side.ask()
        assert [frame.header.corr for frame in side.sent()] == expected


def test_what_is_left_of_the_time_travels(sides):
    one, other = sides
    one.ask(now=100.0, timeout=2.5)
    one.ask()
    frames = one.sent()
    assert [frame.header.aux for frame in frames] == [2500, 0]
    for frame in frames:
        other.session.receive(frame, 7.0)
    assert [request.deadline for request in other.requests] == [9.5, math.inf]


def test_a_request_expires_once_and_its_late_answer_is_dropped(sides):
    one, other = sides
    _, answers = one.ask(now=0.0, timeout=1.0)
    flow(one, other)
    assert one.session.next_deadline == 1.0
    one.session.expire(0.99)
    assert not answers
    other.requests[0].connection = type("Connection", (), {"queued": lambda self: None})()
    other.requests[0].reply(b"late")
    one.session.expire(1.0)
    flow(one, other)
    assert [type(answer) for answer in answers] == [DeadlineExceeded]
    assert one.session.is_idle and other.session.is_idle and not one.session._tombstones


def test_every_cancel_is_acknowledged(sides):
    one, other = sides
    for _ in range(100):
        pending, answers = one.ask()
        flow(one, other)
        one.session.cancel(pending)
        flow(one, other)
        assert not answers
    assert all(request.cancelled for request in other.requests)
    assert not one.session._tombstones and not other.session.unanswered


def test_old_deadlines_do_not_pile_up(sides):
    one, other = sides
    for _ in range(5000):
        pending, _ = one.ask(timeout=30.0)
        one.session.cancel(pending)
        flow(one, other)
    assert len(one.session._deadlines) < 200


def test_requests_above_the_limit_wait_and_then_are_refused():
    limits = Limits(max_in_flight=2, max_waiting=1)
    one, other = Side(dialer=True, limits=limits), Side(dialer=False, limits=limits)
    asked = [one.ask(b"%d" % number) for number in range(3)]
    with pytest.raises(Overloaded):
        one.ask()
    flow(one, other)
    assert [request.body for request in other.requests] == [b"0", b"1"]
    one.session.cancel(asked[0][0])
    flow(one, other)
    assert [request.body for request in other.requests] == [b"0", b"1", b"2"]


def test_going_away_tells_which_requests_never_began(sides):
    one, other = sides
    _, first = one.ask()
    flow(one, other)
    _, second = one.ask()
    other.session.go_away()
    flow(other, one)
    assert len(other.requests) == 1
    assert not first
    assert [(type(answer), answer.delivery) for answer in second] == [(PeerGoingAway, "never")]
    with pytest.raises(PeerGoingAway):
        one.ask()


def test_the_end_tells_everybody_what_may_have_arrived():
    one = Side(dialer=True, limits=Limits(max_in_flight=1))
    other = Side(dialer=False)
    _, sent = one.ask()
    _, waiting = one.ask()
    other.ask()
    flow(one, other)
    withdrawn = []
    one.requests[0].on_cancel(lambda: withdrawn.append(True))
    one.session.end(ConnectionLost("cut"))
    assert [(type(answer), answer.delivery) for answer in sent] == [(ConnectionLost, "maybe")]
    assert [(type(answer), answer.delivery) for answer in waiting] == [(ConnectionLost, "never")]
    assert withdrawn and one.requests[0].cancelled
    with pytest.raises(ConnectionLost):
        one.ask()


def test_an_answer_is_given_once(sides):
    one, other = sides
    _, answers = one.ask()
    flow(one, other)
    other.session.reply(other.requests[0], b"yes", ())
    with pytest.raises(RuntimeError, match="before"):
        other.session.reply(other.requests[0], b"again", ())
    flow(one, other)
    assert [answer.body for answer in answers] == [b"yes"]


def test_an_answer_above_what_was_asked_for_ends_the_connection(sides):
    one, other = sides
    one.ask()
    flow(one, other)
    other.requests[0].max_response = 10_000
    other.session.reply(other.requests[0], b"", [bytes(5000)])
    with pytest.raises(ProtocolError, match="5000 bytes"):
        flow(one, other)


def test_an_answer_above_the_limits_says_what_of_it_is(sides):
    one, other = sides
    told = [one.ask()[1], one.ask()[1]]
    flow(one, other)
    first, second = other.requests
    other.session.reply(first, bytes(Limits().max_body_bytes + 1), ())
    other.session.reply(second, b"", [bytes(5000)])
    flow(one, other)
    (too_long,), (too_large,) = told
    assert "has a body of 1048577 bytes, above 1048576" in str(too_long)
    assert "has a payload of 5000 bytes, above" in str(too_large)


def test_a_failing_callback_does_not_harm_the_others(sides, caplog):
    one, other = sides
    one.session.request(1, b"", (), deadline=math.inf, now=0, max_response=0, on_done=lambda _: 1 / 0)
    _, answers = one.ask()
    flow(one, other)
    for request in other.requests:
        other.session.reply(request, b"", ())
    flow(one, other)
    assert len(answers) == 1 and "ZeroDivisionError" in caplog.text


def test_parts_with_gaps_are_refused(sides):
    one, _ = sides
    gaps = memoryview(bytes(100))[::2]
    with pytest.raises(ValueError, match="contiguous"):
        one.session.request(1, b"", [gaps], deadline=math.inf, now=0, max_response=0, on_done=print)
    assert not one.session.outbox


STEPS = st.lists(
    st.tuples(st.sampled_from(["ask", "cancel", "reply", "fail", "carry", "expire"]), st.integers(0, 9))
)


@settings(max_examples=200)
@given(STEPS, st.integers(1, 4))
def test_every_request_ends_exactly_once_or_was_cancelled(steps, in_flight):
    """Whatever the order of asking, cancelling, answering, delivering and time: nothing is lost or doubled."""
    limits = Limits(max_in_flight=in_flight)
    one, other = Side(dialer=True, limits=limits), Side(dialer=False, limits=limits)
    asked, cancelled, open_requests = [], set(), []
    now = 0.0

    def carry():
        flow(one, other, now)
        open_requests[:] = [request for request in other.requests if request.corr in other.session.unanswered]
        assert len(open_requests) <= in_flight

    for step, choice in steps:
        if step == "ask":
            asked.append(one.ask(now=now, timeout=1.0 + choice))
        elif step == "cancel" and asked:
            pending, answers = asked[choice % len(asked)]
            if not answers:
                cancelled.add(choice % len(asked))
            one.session.cancel(pending)
        elif step == "carry":
            carry()
        elif step == "expire":
            now += choice
            one.session.expire(now)
        elif open_requests:
            request = open_requests.pop(choice % len(open_requests))
            if step == "reply":
                other.session.reply(request, b"ok", ())
            else:
                other.session.fail(request, Status.INTERNAL, "no")
    carry()
    while open_requests:
        for request in list(open_requests):
            other.session.reply(request, b"end", ())
        carry()
    for index, (_, answers) in enumerate(asked):
        assert len(answers) == (0 if index in cancelled else 1)
        assert all(isinstance(answer, Response | RemoteError | DeadlineExceeded) for answer in answers)
    assert one.session.is_idle and other.session.is_idle and not one.session._tombstones


def test_keepalive_is_answered(sides):
    one, other = sides
    one.session.ping()
    other.session.receive(one.sent()[0], 0.0)
    assert [frame.header.type for frame in other.sent()] == [FrameType.PONG]


PART = st.one_of(
    st.integers(0, 9000).map(bytes),
    st.integers(0, 9000).map(bytearray),
    st.integers(0, 2000).map(lambda count: memoryview(array("I", [7] * count))),
    st.integers(1, 9000).map(lambda length: FileSlice(0, 0, length)),
)


@given(parts=st.lists(PART, max_size=4))
def test_what_waits_to_be_sent_is_counted_and_described(parts):
    one = Side(dialer=True).session
    one.request(1, b"body", parts, deadline=math.inf, now=0.0, max_response=0, on_done=lambda _: None)
    (out,) = one.outbox
    ranges = [part for part in parts if isinstance(part, FileSlice)]
    memory = sum(memoryview(part).nbytes for part in parts if part not in ranges)
    header = decode_header(out.head[:HEADER_SIZE], Limits())
    assert header.payload_length == memory + sum(part.length for part in ranges)
    has_crc = bool(parts) and not ranges
    assert header.flags == (PAYLOAD_CRC if has_crc else 0)
    assert header.payload_crc == (crc32c(b"".join(map(bytes, parts))) if has_crc else 0)
    assert one.outbox_bytes == out.nbytes == len(out.head) + memory
    # What its link may be given in one piece.
    assert out.is_small == (has_crc and memory <= 4096)


@pytest.mark.parametrize("nbytes", [4096, 4097])
def test_a_small_answer_is_said_to_be_small(nbytes, sides):
    one, other = sides
    one.session.request(1, b"", (), deadline=math.inf, now=0.0, max_response=9000, on_done=lambda _: None)
    other.session.receive(one.sent()[0], 0.0)
    other.session.reply(other.requests[0], b"", [memoryview(bytes(nbytes))])
    (out,) = other.session.outbox
    assert out.is_small == (nbytes == 4096)
    assert out.nbytes == other.session.outbox_bytes == HEADER_SIZE + nbytes


def test_deadlines_of_what_is_done_are_forgotten(sides):
    one, other = sides
    for _ in range(500):
        _, answers = one.ask(timeout=10.0)
        other.session.receive(one.sent()[0], 0.0)
        other.session.reply(other.requests.pop(), b"", ())
        one.session.receive(other.sent()[0], 0.0)
        assert len(answers) == 1 and len(one.session._deadlines) <= 67
