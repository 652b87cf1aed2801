"""The demo's input: which lines, in which order, how often; and what it says of input that is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from insync.replication.cli.demo.inputs import (
    BLOCK_BYTES,
    LINE_BYTES_MAX,
    Input,
    InputError,
    open_input,
    standard_library,
)


def flat(data: Input, records: int, chunk: int = 3) -> list[tuple[bytes, bytes]]:
    return [(lines.key, value) for lines in data.stream(records, chunk) for value in lines.values]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "b.txt").write_bytes(b"b1\nb2\n\nb4")
    (tmp_path / "a").mkdir()
    (tmp_path / "a/z.txt").write_bytes(b"z1\r\n")
    (tmp_path / "a/empty").write_bytes(b"")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__/x.txt").write_bytes(b"x\n")
    return tmp_path


ONE_PASS = [(b"a/z.txt", b"z1\r"), (b"b.txt", b"b1"), (b"b.txt", b"b2"), (b"b.txt", b""), (b"b.txt", b"b4")]


def test_lines_come_in_order_of_paths_without_newlines(folder: Path) -> None:
    data = open_input(folder)
    assert data.records == 5
    assert flat(data, 5) == ONE_PASS


@pytest.mark.parametrize("records", [1, 4, 5, 6, 13])
@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_any_number_of_records_cuts_or_repeats_the_input(folder: Path, records: int, chunk: int) -> None:
    assert flat(open_input(folder), records, chunk) == (ONE_PASS * 3)[:records]


def test_chunks_are_of_one_key_and_bounded(folder: Path) -> None:
    chunks = list(open_input(folder).stream(10, 3))
    assert [len(each.values) for each in chunks] == [1, 3, 1, 1, 3, 1]


@pytest.mark.parametrize("records", [1, 3, 5, 6, 7, 10])
def test_the_last_record_of_each_key_is_known_without_reading(folder: Path, records: int) -> None:
    data = open_input(folder)
    last = {key: index for index, (key, _) in enumerate(flat(data, records))}
    assert data.last_index_of_keys(records) == last


def test_lines_across_blocks_are_whole(tmp_path: Path) -> None:
    lines = [b"%d" % n * 20 for n in range(40_000)]
    path = tmp_path / "big.txt"
    path.write_bytes(b"\n".join(lines) + b"\n")
    assert path.stat().st_size > 2 * BLOCK_BYTES
    data = open_input(path)
    assert [value for _, value in flat(data, data.records, 1000)] == lines
    assert data.sources[0].size_bytes == sum(map(len, lines))


def test_a_single_file_is_keyed_by_its_name(folder: Path) -> None:
    assert {key for key, _ in flat(open_input(folder / "b.txt"), 4)} == {b"b.txt"}


def test_missing_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere: no such file or folder"):
        open_input(tmp_path / "nowhere")


@pytest.mark.parametrize("content", [None, b""])
def test_empty_input_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "nothing"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"nothing has no lines"):
        open_input(path)


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(b"\0" * (LINE_BYTES_MAX + BLOCK_BYTES + 1))
    with pytest.raises(InputError, match=r"image: a line is longer than"):
        open_input(path)


def test_the_standard_library_is_the_default() -> None:
    data = open_input(None)
    keys = [source.key for source in data.sources]
    assert b"json/decoder.py" in keys and all(key.endswith(b".py") for key in keys)
    assert not any(b"site-packages" in key for key in keys)
    assert keys == sorted(keys, key=lambda key: standard_library() / key.decode())
