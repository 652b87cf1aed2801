"""The connection machine: requests in any split of bytes, answers in any order, and what ends a connection."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from insync.plugins.kafka.core import connection as machine
from insync.plugins.kafka.core.connection import Connection, Request
from insync.plugins.kafka.core.errors import ProtocolViolationError
from insync.plugins.kafka.handlers import OFFERED
from insync.plugins.kafka.protocol.apis import Api
from insync.transport.frames import PREFACE_MAGIC

PRODUCE, METADATA, HEARTBEAT = Api.PRODUCE, Api.METADATA, Api.FIND_COORDINATOR


def new(**options: object) -> Connection:
    return Connection(offers=OFFERED.has, flexible=OFFERED.is_flexible, **options)  # type: ignore[arg-type]


def frame(api: int, version: int, correlation: int, body: bytes = b"", client_id: str | None = "c") -> bytes:
    name = b"\xff\xff" if client_id is None else struct.pack(">h", len(client_id)) + client_id.encode()
    tags = b"\0" if OFFERED.has(api, version) and OFFERED.is_flexible(api, version) else b""
    whole = struct.pack(">hhi", api, version, correlation) + name + tags + body
    return struct.pack(">i", len(whole)) + whole


def feed(connection: Connection, data: bytes) -> bytes:
    """As a socket does: no more than there is room for; what is left then."""
    while data:
        if connection.room_needed:
            connection.make_room()
        buffer = connection.get_buffer()
        if not len(buffer):
            break
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        connection.received(count)
        data = data[count:]
    return data


def started(connection: Connection) -> list[Request]:
    found = []
    while (request := connection.next_request()) is not None:
        found.append(request)
    return found


@settings(max_examples=200)
@given(st.data())
def test_requests_are_the_same_however_their_bytes_are_split(data: st.DataObject) -> None:
    bodies = data.draw(st.lists(st.binary(max_size=300), min_size=1, max_size=8))
    if data.draw(st.booleans()):
        bodies[data.draw(st.integers(0, len(bodies) - 1))] = bytes(70_000)  # gets memory of its own
    whole = b"".join(frame(METADATA, 12, number, body) for number, body in enumerate(bodies))
    connection, seen, at = new(), [], 0
    while at < len(whole):
        step = data.draw(st.integers(1, 40_000))
        part = whole[at : at + step]
        at += len(part) - len(feed(connection, part))
        while (request := connection.next_request()) is not None:
            seen.append((request.correlation, bytes(request.body[request.position :])))
            connection.answer(request, [b"x"])
            assert len(connection.take_answers()) == 1
    assert seen == list(enumerate(bodies))


@settings(max_examples=200)
@given(st.data())
def test_requests_are_the_same_however_the_buffer_grows_and_shrinks(data: st.DataObject) -> None:
    """Frames around the sizes of buffers, in reads of any size, with memory granted now and then."""
    sizes = data.draw(
        st.lists(st.sampled_from([0, 100, 8_170, 16_384, 65_500, 65_521, 90_000, 300_000]), max_size=12)
    )
    granted = data.draw(st.lists(st.booleans(), max_size=4))
    held: list[int] = []

    def may_grow(more: int) -> bool:
        if granted and granted.pop():
            held.append(more)
            return True
        return False

    whole = b"".join(frame(PRODUCE, 8, number, bytes([number]) * size) for number, size in enumerate(sizes))
    connection, seen, at = new(may_grow=may_grow), [], 0
    while at < len(whole):
        part = whole[at : at + data.draw(st.sampled_from([1_000, 40_000, 1_000_000]))]
        at += len(part) - len(feed(connection, part))
        for request in started(connection):
            seen.append((request.correlation, bytes(request.body[request.position :])))
            connection.answer(request, [b"x"])
        connection.take_answers()
        if connection.can_shrink and data.draw(st.booleans()):
            assert connection.shrink() == sum(held)
            held.clear()
            assert not connection.can_shrink
    assert seen == [(number, bytes([number]) * size) for number, size in enumerate(sizes)]
    assert connection.shrink() == sum(held)


def test_the_room_of_a_large_frame_that_never_came_whole_is_given_back() -> None:
    connection, data = new(), frame(PRODUCE, 8, 1, bytes(90_000))
    assert feed(connection, data[:50_000]) == b""
    assert connection.next_request() is None
    assert connection.large_missing == len(data) - 50_000
    assert connection.shrink() == len(data) - 4
    assert connection.shrink() == 0


def test_reads_that_fill_the_buffer_make_it_larger_up_to_a_bound() -> None:
    connection, sizes = new(), []
    data = frame(METADATA, 5, 1, bytes(1000)) * 2000
    while data and (not sizes or sizes[-1] > 0):
        buffer = connection.get_buffer()
        sizes.append(len(buffer))
        buffer[:] = data[: len(buffer)]
        data = data[len(buffer) :]
        connection.received(len(buffer))
    least, small, most = machine.LEAST_BUFFER, machine.SMALL_FRAME, machine.MOST_BUFFER
    assert sizes == [least, 3 * least, small - 4 * least, most - small, 0]
    connection = new(may_grow=lambda more: False)
    while len(buffer := connection.get_buffer()):
        connection.received(len(buffer))
    assert len(connection._buffer) == small


@given(st.permutations(range(6)))
def test_answers_leave_in_the_order_of_requests(order: list[int]) -> None:
    connection = new()
    feed(connection, b"".join(frame(PRODUCE, 8, number) for number in range(6)))
    requests, sent = started(connection), b""
    assert len(requests) == 6
    for number in order:
        connection.answer(requests[number], [b"%d" % number])
        sent += b"".join(connection.take_answers())
    assert sent == b"".join(struct.pack(">ii", 5, number) + b"%d" % number for number in range(6))
    assert connection.is_idle


def test_only_produce_starts_behind_unanswered_requests() -> None:
    connection = new()
    feed(
        connection, frame(PRODUCE, 8, 1) + frame(PRODUCE, 8, 2) + frame(METADATA, 5, 3) + frame(PRODUCE, 8, 4)
    )
    first, second = started(connection)
    for request in (first, second):
        assert started(connection) == []
        connection.answer(request, [b"x"])
        connection.take_answers()
    (third,) = started(connection)
    assert third.api == METADATA
    connection.answer(third, [b"x"])
    assert started(connection) == [], "its answer has not been taken"
    connection.take_answers()
    assert [each.correlation for each in started(connection)] == [4]


def test_a_bound_on_unanswered_produce_requests() -> None:
    connection = new()
    feed(connection, b"".join(frame(PRODUCE, 8, number) for number in range(machine.MOST_PRODUCES + 1)))
    assert len(started(connection)) == machine.MOST_PRODUCES


def test_no_answer_where_none_is_wanted() -> None:
    connection = new()
    feed(connection, frame(PRODUCE, 8, 1) + frame(PRODUCE, 8, 2))
    first, second = started(connection)
    connection.answer(second, [b"x"])
    assert connection.take_answers() == []
    connection.answer(first, [])
    assert b"".join(connection.take_answers()) == struct.pack(">ii", 5, 2) + b"x"


def test_headers_of_answers_have_tags_but_for_those_of_api_versions() -> None:
    for api, version, expected in ((METADATA, 12, b"\0"), (METADATA, 8, b""), (Api.API_VERSIONS, 3, b"")):
        connection = new()
        feed(connection, frame(api, version, 7, b"\1" * 4))
        (request,) = started(connection)
        connection.answer(request, [b"body"])
        assert b"".join(connection.take_answers())[8:] == expected + b"body"


def test_api_versions_of_any_version_is_a_request() -> None:
    connection = new()
    feed(connection, struct.pack(">ihhi", 11, Api.API_VERSIONS, 99, 5) + b"???")
    (request,) = started(connection)
    assert (request.version, request.position) == (99, len(request.body))


def test_tagged_fields_of_headers_are_passed_over() -> None:
    connection = new()
    head = struct.pack(">hhi", METADATA, 12, 1) + b"\xff\xff" + b"\2\5\3abc\x90\1\0"
    feed(connection, struct.pack(">i", len(head) + 4) + head + b"body")
    (request,) = started(connection)
    assert request.client_id is None
    assert bytes(request.body[request.position :]) == b"body"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (frame(METADATA, 99, 1), "version 99 of API 3"),
        (frame(57, 0, 1), "version 0 of API 57"),
        (b"GET / HTTP/1.1\r\n\r\n", "an HTTP client"),
        (b"\x16\x03\x01\x02\x00" + bytes(20), "a TLS client"),
        (PREFACE_MAGIC + bytes(20), "one of insync's own clients"),
        (struct.pack(">ihhi", 7, 3, 5, 1), "a frame of 7 bytes"),
        (struct.pack(">ihhi", -1, 3, 5, 1), "a frame of -1 bytes"),
        (struct.pack(">ihhi", machine.MOST_ELSE + 1, METADATA, 5, 1), "may have 8 to"),
        (struct.pack(">ihhi", machine.MOST_PRODUCED + 1, PRODUCE, 5, 1), "may have 8 to"),
        (struct.pack(">ihhih", 10, METADATA, 5, 1, 20), "longer than its request"),
        (struct.pack(">ihhih", 12, METADATA, 5, 1, 2) + b"\xff\xff", "not UTF-8"),
        (struct.pack(">ihhih", 13, METADATA, 12, 1, 0) + b"\1\0\7", "ends too early"),
        (struct.pack(">ihhih", 17, METADATA, 12, 1, 0) + b"\xff" * 7, "more than five bytes"),
        (struct.pack(">ihhih", 12, METADATA, 12, 1, 0) + b"\xe9\7", "with 1001 tagged fields"),
    ],
)
def test_what_ends_a_connection(data: bytes, why: str) -> None:
    connection = new()
    with pytest.raises(ProtocolViolationError, match=why):
        feed(connection, data)
        started(connection)


def test_strangers_send_little_and_only_what_proves_who_they_are() -> None:
    for data in (frame(METADATA, 5, 1), struct.pack(">ihhi", 1 << 17, Api.API_VERSIONS, 0, 1)):
        connection = new(strangers_may=(Api.API_VERSIONS,))
        with pytest.raises(ProtocolViolationError, match=r"security\.protocol|a frame of"):
            feed(connection, data)
            started(connection)
    connection = new(strangers_may=(Api.API_VERSIONS,))
    feed(connection, frame(Api.API_VERSIONS, 0, 1))
    assert len(started(connection)) == 1


def test_a_large_frame_takes_no_memory_before_there_is_room() -> None:
    connection = new()
    head = struct.pack(">ihhih", 50 << 20, PRODUCE, 8, 1, 0)
    buffer = connection.get_buffer()
    buffer[: len(head)] = head
    connection.received(len(head))
    assert connection.next_request() is None
    assert connection.room_needed == 50 << 20
    assert len(connection.get_buffer()) < machine.SMALL_FRAME


def test_behind_a_large_frame_the_next_head_is_read_by_itself() -> None:
    """What comes with it would have to be copied if that frame is large, too."""
    connection = new()
    large, small = frame(PRODUCE, 8, 1, bytes(100_000)), frame(PRODUCE, 8, 2, bytes(100))
    head = 12
    assert not feed(connection, large[:20])
    assert not feed(connection, large[20:])
    assert len(started(connection)) == 1
    for data in (large, small):
        assert len(connection.get_buffer()) == head
        assert not feed(connection, data[:5])
        assert len(connection.get_buffer()) == head - 5
        assert not feed(connection, data[5:head])
        if data is large:
            assert connection.room_needed == len(large) - 4
            connection.make_room()
            assert len(connection.get_buffer()) == len(large) - head
        else:
            assert len(connection.get_buffer()) > head
        assert not feed(connection, data[head:])
        (request,) = started(connection)
        assert bytes(request.body) == data[4:]
    assert len(connection.get_buffer()) > head


@given(st.lists(st.binary(max_size=60), max_size=20))
def test_any_bytes_are_requests_or_a_violation(pieces: list[bytes]) -> None:
    connection = new()
    try:
        for piece in pieces:
            feed(connection, piece)
            started(connection)
    except ProtocolViolationError:
        pass


@pytest.mark.parametrize("size", [-1, machine.FRAME_OF_STRANGERS + 1, 2**31 - 1])
def test_a_bare_token_has_a_size_that_strangers_may_send(size: int) -> None:
    connection = new()
    connection.next_is_token = True
    with pytest.raises(ProtocolViolationError, match=f"a SASL token of {size} bytes"):
        feed(connection, struct.pack(">i", size) + bytes(20))
        connection.next_request()
