"""The last 4 KiB of a log, cut at every byte and flipped in every byte: nothing is served that was not written."""

from __future__ import annotations

from pathlib import Path

import pytest

from insync.storage import BatchInfo, CorruptLogError, LogSettings
from insync.storage.batch import scan

from .building import append, batch, open_disk
from .crash.model import everything

TAIL = 4096
EPOCH_AT, EPOCH_END = 12, 16
HEADER = 61
SETTINGS = LogSettings(segment_index_bytes=800)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A log of some 8 KiB, by three leaders, stopped without a word."""
    folder = tmp_path / "t-0"
    log = open_disk(folder, SETTINGS)
    for at in range(14):
        append(log, batch(at % 3 + 1, size=300, mark=f"{at}:"), leader_epoch=at // 5)
    log.close(clean=False)
    return folder


def log_file(folder: Path) -> Path:
    return folder / f"{0:020d}.log"


@pytest.mark.slow
def test_a_cut_at_every_byte_leaves_the_whole_batches_before_it(folder: Path) -> None:
    path = log_file(folder)
    data = path.read_bytes()
    infos = scan(data)
    assert len(data) > TAIL + 1000
    for cut in range(len(data) - TAIL, len(data) + 1):
        whole = [info for info in infos if info.position + info.size_bytes <= cut]
        end = whole[-1].position + whole[-1].size_bytes
        path.write_bytes(data[:cut])
        log = open_disk(folder, SETTINGS)
        assert log.log_end_offset == whole[-1].next_offset
        assert log.recovery.bytes_cut == cut - end
        assert path.stat().st_size == end
        assert log.epochs[-1].epoch == whole[-1].leader_epoch
        log.close(clean=False)
    path.write_bytes(data)
    log = open_disk(folder, SETTINGS)
    assert everything(log) == data
    log.close()


def served(folder: Path, data: bytes) -> bytes | None:
    """What is served of a log with these bytes; None if it does not open, with every file as it was."""
    path = log_file(folder)
    path.write_bytes(data)
    before = {each.name: each.read_bytes() for each in folder.iterdir()}
    try:
        log = open_disk(folder, SETTINGS)
    except CorruptLogError:
        assert {each.name: each.read_bytes() for each in folder.iterdir()} == before
        return None
    found = everything(log)
    assert len(found) + log.recovery.bytes_cut == len(data)
    log.close(clean=False)
    return found


def raises_last_epoch(last: BatchInfo, at: int, bit: int, data: bytes) -> bool:
    """The one change that nothing can tell: a later leader epoch in the log's very last batch. It is not under the
    CRC, since leaders set it, and a later batch would contradict it.
    """
    field = last.position + EPOCH_AT <= at < last.position + EPOCH_END
    sign = at == last.position + EPOCH_AT and bit == 7
    return field and not sign and not data[at] >> bit & 1


@pytest.mark.slow
def test_a_flip_in_every_byte_is_cut_or_refused_never_served(folder: Path) -> None:
    data = log_file(folder).read_bytes()
    infos = scan(data)
    last = infos[-1]
    headers = {at for info in infos[-3:] for at in range(info.position, info.position + HEADER)}
    cut = refused = unseen = 0
    for at in range(len(data) - TAIL, len(data)):
        for bit in range(8) if at in headers else [at % 8]:
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            found = served(folder, bytes(flipped))
            if found is None:
                refused += 1
            elif raises_last_epoch(last, at, bit, data):
                assert found == flipped
                unseen += 1
                (folder / "leader-epoch-checkpoint").unlink()
            else:
                assert at >= last.position, "only the last batch can be taken for torn"
                assert found == data[: last.position]
                cut += 1
    assert unseen == 4 * 8 - 2, "of 31 bits without the sign one is set already"
    assert cut > last.size_bytes
    assert refused > TAIL - last.size_bytes - 4 * 8
