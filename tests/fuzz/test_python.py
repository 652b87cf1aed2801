"""The fuzzer for Python is led by coverage; what it is pointed at holds, and would not if it were broken."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from insync.plugins.kafka.handlers import produce
from insync.replication.core.broker.fetching import queries
from insync.replication.node import configuration
from insync.replication.node.requests import _handlers
from insync.replication.wire import _codec
from insync.transport import frames as frames_
from insync.transport import stream as stream_
from insync.transport.connections.session import Session

from . import kafka, requests, settings, transport
from ._python import PythonTarget, fuzz_python

PYTHON = [
    target
    for area in (transport, settings, requests, kafka)
    for target in area.TARGETS
    if isinstance(target, PythonTarget)
]


@pytest.fixture(autouse=True)
def node() -> Iterator[None]:
    yield
    requests.let_go()
    kafka.let_go()


def steps(data: bytes) -> None:
    """Nobody guesses four bytes; who keeps each that is right finds them."""
    for index, expected in enumerate(b"FUZZ"):
        if len(data) <= index or data[index] != expected:
            return
    raise ValueError("found")


def by_name(name: str) -> PythonTarget:
    return next(target for target in PYTHON if target.name == name)


def test_what_reaches_more_is_followed(tmp_path: Path) -> None:
    found = fuzz_python(
        PythonTarget("steps", steps, [sys.modules[__name__]], max_len=8), tmp_path, 20, seed=1
    )
    assert "found" in found.failure and found.input_file is not None
    assert found.input_file.read_bytes()[:4] == b"FUZZ"
    assert found.corpus >= 4 and found.units < 200_000


@pytest.mark.slow
@pytest.mark.parametrize("target", PYTHON, ids=lambda target: target.name)
def test_nothing_is_found_in_a_short_run(tmp_path: Path, target: PythonTarget) -> None:
    found = fuzz_python(target, tmp_path, 1, seed=1)
    assert not found.failure, found.failure
    assert found.units > 20 and found.coverage > (5 if "decoder" in target.name else 20)


def expect_a_finding(folder: Path, name: str) -> None:
    failure = fuzz_python(by_name(name), folder, 60, seed=1).failure
    assert failure and "has not started" not in failure, failure
    assert "TypeError" not in failure, f"what is planted has other arguments than what it replaces: {failure}"


def test_lengths_that_are_believed_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = frames_.Limits()
    real = stream_.decode_header
    monkeypatch.setattr(stream_, "decode_header", lambda raw, _: real(raw, limits))
    expect_a_finding(tmp_path, "transport_frames")


def test_errors_that_no_caller_knows_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(body: bytes) -> dict[int, bytes]:
        return dict.fromkeys(range(1, 8), body[8:]) if body[:1] == b"\x01" else {9: bytes([body[99]])}

    monkeypatch.setattr(frames_, "_decode_tags", decode)
    expect_a_finding(tmp_path, "transport_hello")


def test_a_proof_that_is_not_compared_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport._handshake, "is_proof", lambda given, expected: len(given) == 32)
    expect_a_finding(tmp_path, "transport_strangers")


def test_a_credit_that_is_not_checked_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def release_nothing(self: Session, *_: object) -> None:
        self.intake.held += 1

    monkeypatch.setattr(Session, "_receive_cancel", release_nothing)
    expect_a_finding(tmp_path, "transport_session")


def test_a_decoder_that_lets_its_own_errors_out_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_codec, "_undecoded", lambda decoders, what, kind, error: error)
    expect_a_finding(tmp_path, "requests_decoder")


@pytest.mark.slow
def test_a_request_that_breaks_its_handler_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = queries.Queries.list_offset

    def fragile(self: queries.Queries, wanted: object, found: object, isolation: int) -> object:
        known = {("t", 0): real, ("t", 1): real}
        return known[wanted.topic, wanted.partition](self, wanted, found, isolation)  # type: ignore[attr-defined, arg-type]

    monkeypatch.setattr(queries.Queries, "list_offset", fragile)
    expect_a_finding(tmp_path, "requests_node")


def test_an_answer_that_nobody_can_read_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(self: _handlers.Handlers, request: object) -> None:
        request.reply(b"\xc1")  # type: ignore[attr-defined]

    monkeypatch.setattr(_handlers.Handlers, "_describe_node", odd)
    expect_a_finding(tmp_path, "requests_node")


def test_a_setting_that_is_believed_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuration, "_truth", lambda source, name, text: {"true": True}[text])
    expect_a_finding(tmp_path, "settings_texts")


def test_a_version_that_breaks_a_produce_request_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = produce._problem

    def fragile(
        place: tuple[int, int] | None, version: int, frame: memoryview, transactional_id: str | None
    ) -> tuple[int, str]:
        known = dict.fromkeys(range(produce.LEAST, 8), real)
        return known[version](place, version, frame, transactional_id)

    monkeypatch.setattr(produce, "_problem", fragile)
    expect_a_finding(tmp_path, "kafka_node")


def test_a_decoder_of_requests_that_reads_behind_their_end_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = kafka.decode
    monkeypatch.setattr(kafka, "decode", lambda *given: (real(*given)[0], len(given[2]) + 1))
    expect_a_finding(tmp_path, "kafka_decoder")
