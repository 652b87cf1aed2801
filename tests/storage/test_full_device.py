"""A device that is full, page by page: an error, never a signal, and nothing half-written is served."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.requires import missing

SPARE = 24
"""So many pages are left free, at first none, then one more each time."""

FILL = """
import os, sys
from pathlib import Path
from insync.storage import LogDirectory, LogSettings, StorageFullError
from tests.storage.building import append, batch, offsets

device = Path(sys.argv[1])
directory = LogDirectory(device / "logs", cluster_id="c", node_id=1, settings=LogSettings(index_interval_bytes=0))
log = directory.open_log("t", 0, create=True)
append(log, batch(1))
filler = os.open(device / "filler", os.O_CREAT | os.O_RDWR)
try:
    while True:
        os.write(filler, bytes(4096))
except OSError:
    pass
refusals = 0
for spare in range(int(sys.argv[2])):
    size = os.fstat(filler).st_size
    os.ftruncate(filler, max(0, size - 4096))
    try:
        while True:
            append(log, batch(1, size=300))
    except StorageFullError:
        refusals += 1
    assert offsets(log) == list(range(log.log_end_offset))
    assert log._segments[-1].file_size == log.size_bytes, "half-written bytes are left"
os.ftruncate(filler, 0)
for _ in range(50):
    append(log, batch(1))
end = log.log_end_offset
directory.close()
directory = LogDirectory(device / "logs", cluster_id="c", node_id=1)
log = directory.open_log("t", 0, create=False)
assert log.recovery.clean and log.log_end_offset == end and offsets(log) == list(range(end))
directory.close()
print(refusals)
"""


def test_a_full_device_is_an_error_at_every_page(tmp_path: Path) -> None:
    place = tmp_path / "device"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        missing(f"cannot mount a tmpfs: {mounted.stderr.strip()}")
    try:
        done = subprocess.run(
            [sys.executable, "-c", FILL, str(place), str(SPARE)], capture_output=True, text=True, check=False
        )
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr}"
    assert int(done.stdout) == SPARE
