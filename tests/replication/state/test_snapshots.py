"""Snapshots as records and files: whole, or passed over."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.replication.state import _snapshots as s


def made(name: str, position: int, *pieces: bytes, topic_id: str = "t") -> tuple[s.Marker, list[bytes]]:
    chunker = s.Chunker()
    for piece in pieces:
        chunker.write(piece)
    chunks = chunker.end()
    size = sum(map(len, chunks))
    return s.Marker(name, position, 3, len(chunks), size, s.checksum(chunks), topic_id), chunks


def put(shelf: s.Shelf, marker: s.Marker, chunks: list[bytes]) -> None:
    for number, chunk in enumerate(chunks):
        shelf.take(s.chunk_key(marker.name, number), chunk)
    shelf.take(s.marker_key(marker.name), s.encode_marker(marker))


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(1, 50))
def test_pieces_come_back_as_they_were_written(pieces: list[bytes], size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(s, "CHUNK", size)
        _, chunks = made("n", 1, *pieces)
    assert all(len(chunk) <= size for chunk in chunks)
    reading = s.Pieces(chunks)
    assert [reading.read() for _ in pieces] == pieces
    assert reading.read() is None


def test_the_newest_whole_snapshot_is_the_first() -> None:
    shelf = s.Shelf("t")
    put(shelf, *made("old", 5, b"five"))
    put(shelf, *made("new", 9, b"nine"))
    assert [marker.position for marker, _ in shelf.whole()] == [9, 5]


def test_a_torn_a_damaged_and_a_foreign_one_are_passed_over() -> None:
    shelf = s.Shelf("t")
    put(shelf, *made("whole", 5, b"five"))
    marker, chunks = made("torn", 9, b"nine")
    shelf.take(s.marker_key(marker.name), s.encode_marker(marker))
    marker, chunks = made("damaged", 10, b"ten")
    put(shelf, marker, [chunks[0][:-1] + b"?"])
    put(shelf, *made("foreign", 11, b"eleven", topic_id="another topic of this name"))
    marker, chunks = made("unfinished", 12, b"twelve")
    shelf.take(s.chunk_key(marker.name, 0), chunks[0])
    shelf.take(b"nonsense", b"x")
    shelf.take(b"unfinished/x", b"x")
    shelf.take(None, b"x")
    shelf.take(s.marker_key("garbage"), b"\xc1")
    assert [marker.name for marker, _ in shelf.whole()] == ["whole"]
    assert "unfinished" in shelf.names()


def test_what_is_taken_away_is_gone() -> None:
    shelf = s.Shelf("t")
    marker, chunks = made("n", 5, b"five")
    put(shelf, marker, chunks)
    shelf.take(s.marker_key("n"), None)
    shelf.take(s.chunk_key("n", 0), None)
    assert shelf.whole() == [] and shelf.names() == []


def test_the_file_is_whole_or_of_no_use(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "x.snapshot"
    assert s.load(file, "t") is None
    marker, chunks = made("n", 5, b"five", b"more")
    s.save(file, marker, chunks)
    found = s.load(file, "t")
    assert found is not None and found[0] == marker
    reading = s.Pieces(found[1])
    assert [reading.read(), reading.read(), reading.read()] == [b"five", b"more", None]
    assert s.load(file, "another topic of this name") is None
    whole = file.read_bytes()
    for cut in range(len(whole)):
        file.write_bytes(whole[:cut])
        assert s.load(file, "t") is None, cut
    for at in range(len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert s.load(file, "t") is None, at
