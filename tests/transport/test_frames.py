import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.transport._payload import bytes_payload
from insync.transport.errors import FrameTooLargeError, ProtocolError
from insync.transport.frames import (
    HEADER_SIZE,
    MAX_HELLO,
    PREFACE,
    PREFACE_MAGIC,
    Flag,
    FrameType,
    Hello,
    Limits,
    crc32c,
    decode_frame,
    decode_header,
    decode_hello,
    encode_header,
    encode_hello,
    hello_length,
)

HELLO = Hello(cluster_id="c1", node_id=3, incarnation=9, lane="data", expected_node=4, nonce=77)

GOLDEN_HELLO = bytes.fromhex(
    "894953520d0a1a0a"
    "0100010046000000"
    "4d00000000000000"
    "01000200633102000800030000000000000003000800090000000000000005000400646174610600"
    "100000001000000000040000000000040000040008000400000000000000"
)
GOLDEN_FRAME = bytes.fromhex("4952060102000000010000000000000004000000e80300000000000000000000")


def decode(raw, payload=b"", limits=Limits()):  # noqa: B008 - frozen
    return decode_frame(memoryview(raw), bytes_payload(payload), limits)


def test_crc_of_the_standard_check_value():
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(memoryview(b"x123456789")[1:]) == 0xE3069283


def test_golden_frame():
    raw = encode_header(FrameType.REQUEST, 1, kind=2, aux=1000, body=b"body", max_response=1 << 20)
    assert raw[: len(GOLDEN_FRAME)] == GOLDEN_FRAME
    assert raw[40:44] == (1024).to_bytes(4, "little") and raw[48:] == b"body"
    assert raw[32:36] == crc32c(b"body").to_bytes(4, "little")
    assert raw[44:48] == crc32c(raw[:44]).to_bytes(4, "little")


def test_golden_hello():
    assert encode_hello(HELLO) == GOLDEN_HELLO
    assert decode_hello(GOLDEN_HELLO) == HELLO


@given(
    type_=st.sampled_from(FrameType),
    corr=st.integers(0, 2**64 - 1),
    kind=st.integers(0, 2**16 - 1),
    version=st.integers(0, 255),
    aux=st.integers(0, 2**32 - 1),
    body=st.binary(max_size=200),
    payload=st.binary(max_size=200),
    most=st.integers(0, 2**40),
)
def test_frames_round_trip(type_, corr, kind, version, aux, body, payload, most):
    raw = encode_header(
        type_,
        corr,
        kind=kind,
        kind_version=version,
        flags=Flag.PAYLOAD_CRC,
        aux=aux,
        body=body,
        payload_length=len(payload),
        payload_crc=crc32c(payload),
        max_response=most,
    )
    frame = decode(raw, payload)
    header = frame.header
    assert (header.type, header.corr, header.kind, header.kind_version) == (type_, corr, kind, version)
    assert (header.aux, frame.body, bytes(frame.payload.view())) == (aux, body, payload)
    assert 0 <= header.max_response - most < 1024


@pytest.mark.parametrize("bit", range(HEADER_SIZE * 8))
def test_every_flipped_bit_of_a_header_is_found(bit):
    raw = bytearray(
        encode_header(FrameType.REQUEST, 12345, kind=3, aux=99, body=b"abc", max_response=1 << 20)
    )
    raw[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ProtocolError):
        decode_header(bytes(raw[:HEADER_SIZE]), Limits())


@given(st.data())
def test_a_flipped_bit_of_body_or_payload_is_found(data):
    body, payload = (
        data.draw(st.binary(min_size=1, max_size=50)),
        data.draw(st.binary(min_size=1, max_size=50)),
    )
    whole = bytearray(body + payload)
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    head = encode_header(
        FrameType.REPLY,
        1,
        flags=Flag.PAYLOAD_CRC,
        body=body,
        payload_length=len(payload),
        payload_crc=crc32c(payload),
    )
    whole[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ProtocolError):
        decode(head[:HEADER_SIZE] + whole[: len(body)], bytes(whole[len(body) :]))


@given(st.binary(min_size=HEADER_SIZE, max_size=HEADER_SIZE))
def test_random_bytes_are_no_header(raw):
    with pytest.raises(ProtocolError):
        decode_header(raw, Limits())


@given(st.binary(max_size=300))
def test_random_bytes_are_no_frame_and_no_hello(raw):
    with pytest.raises(ProtocolError):
        decode(raw)
    with pytest.raises(ProtocolError):
        decode_hello(raw)


@given(st.integers(0, len(GOLDEN_HELLO) - 1))
def test_a_hello_cut_anywhere_is_refused(length):
    with pytest.raises(ProtocolError):
        decode_hello(GOLDEN_HELLO[:length])


@given(st.binary(max_size=200))
def test_a_hello_of_random_tags_is_decoded_or_refused(body):
    raw = PREFACE.pack(PREFACE_MAGIC, 1, 1, len(body), 0) + body
    with pytest.raises(ProtocolError):
        decode_hello(raw)


def test_unknown_tags_of_a_hello_are_skipped():
    extra = struct.pack("<HH", 4711, 5) + b"later"
    raw = bytearray(GOLDEN_HELLO + extra)
    struct.pack_into("<I", raw, 12, len(raw) - PREFACE.size)
    assert decode_hello(bytes(raw)) == HELLO


def test_lengths_are_not_believed_above_the_limits():
    limits = Limits(max_body_bytes=3, max_payload_bytes=10)
    for raw in (
        encode_header(FrameType.REPLY, 1, body=b"four"),
        encode_header(FrameType.REPLY, 1, payload_length=11),
        encode_header(FrameType.REPLY, 1, payload_length=2**64 - 1),
    ):
        with pytest.raises(FrameTooLargeError, match="limits are 3 and 10"):
            decode_header(raw[:HEADER_SIZE], limits)


def test_a_longer_header_of_a_later_version_is_skipped():
    raw = bytearray(encode_header(FrameType.REPLY, 5, body=b"body"))
    raw[2] = 7
    raw[44:48] = crc32c(raw[:44]).to_bytes(4, "little")
    raw[48:48] = b"newfield"
    assert decode(bytes(raw)).body == b"body"


def test_a_preface_tells_peers_from_others():
    with pytest.raises(ProtocolError, match="GET / HTTP"):
        hello_length(b"GET / HTTP/1.1\r\nHost: example"[: PREFACE.size])
    with pytest.raises(ProtocolError, match="above"):
        hello_length(PREFACE.pack(PREFACE_MAGIC, 1, 1, MAX_HELLO + 1, 0))
    with pytest.raises(ValueError, match="HELLO"):
        encode_hello(Hello(cluster_id="c" * 20_000, node_id=1, incarnation=1, lane=""))
