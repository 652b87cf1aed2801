"""What has the name of a file and is none hangs nobody who opens it, and is refused by its name."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from insync.storage import LogDirectory, MisplacedError, StorageError
from insync.storage._opening import NoFileError, make_way, open_file, read_file

from ..building import append, batch

AT_DIRECTORY = (
    "meta.properties",
    ".lock",
    "insync.proof",
    ".partitions-created",
    ".kafka_cleanshutdown",
    "replication-offset-checkpoint",
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "cleaner-offset-checkpoint",
)
IN_PARTITION = ("partition.metadata", "leader-epoch-checkpoint", "00000000000000000000.log")
ASIDES = ("replication-offset-checkpoint.tmp", "meta.properties.tmp", "device-check.tmp", "insync.proof.tmp")


def fifo(path: Path) -> None:
    os.mkfifo(path)


def bound(path: Path) -> None:
    """A socket; its own path would be too long for one."""
    folder = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


def nowhere(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def folder(path: Path) -> None:
    path.mkdir()


def device(path: Path) -> None:
    path.symlink_to("/dev/tty")


KINDS = [fifo, bound, nowhere, loop, folder, device]


def opened(path: Path) -> LogDirectory:
    return LogDirectory(path, cluster_id="c", node_id=1)


def used(path: Path) -> None:
    directory = opened(path)
    log = directory.open_log("t", 0, create=True, topic_id="a")
    append(log, batch(3))
    directory.close()


@pytest.mark.parametrize("name", AT_DIRECTORY)
@pytest.mark.parametrize("put", KINDS)
def test_a_data_folder_is_refused(tmp_path: Path, name: str, put: Callable[[Path], None]) -> None:
    used(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    put(tmp_path / name)
    with pytest.raises(MisplacedError, match=rf"{name} is .*, not a file; move it away") as caught:
        opened(tmp_path)
    assert str(tmp_path / name) in str(caught.value)
    assert not (tmp_path / "nowhere").exists(), "no file is made where a link leads"
    path = tmp_path / name
    path.rmdir() if path.is_dir() else path.unlink()
    if name == "meta.properties":
        return
    directory = opened(tmp_path)
    assert directory.open_log("t", 0, create=False).log_end_offset == 3
    directory.close()


@pytest.mark.parametrize("name", IN_PARTITION)
@pytest.mark.parametrize("put", KINDS)
def test_a_partition_is_refused_and_the_others_open(
    tmp_path: Path, name: str, put: Callable[[Path], None]
) -> None:
    used(tmp_path)
    path = tmp_path / "t-0" / name
    path.unlink(missing_ok=True)
    put(path)
    directory = opened(tmp_path)
    with pytest.raises(MisplacedError, match=rf"{name} is .*, not a file; move it away"):
        directory.open_log("t", 0, create=False, topic_id="a")
    assert os.path.lexists(path) and not path.is_file(), "nothing was changed"
    append(directory.open_log("u", 0, create=True), batch())
    directory.close()


@pytest.mark.parametrize("name", ASIDES)
@pytest.mark.parametrize("put", KINDS)
def test_what_stands_where_files_are_written_aside(
    tmp_path: Path, name: str, put: Callable[[Path], None]
) -> None:
    """The name is nobody else's: all but a folder goes."""
    used(tmp_path)
    put(tmp_path / name)
    directory = opened(tmp_path)
    try:
        directory.check_device()
        directory.write_checkpoints({("t", 0): 3})
    except MisplacedError as error:
        assert put is folder and str(tmp_path / name) in str(error)
    else:
        assert directory.high_watermarks() == {("t", 0): 3}
    directory.close(clean=False)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("put", KINDS)
@pytest.mark.parametrize(
    "flags", [os.O_RDONLY, os.O_RDWR | os.O_CREAT, os.O_WRONLY | os.O_APPEND | os.O_CREAT]
)
def test_no_call_waits_for_the_other_end(tmp_path: Path, put: Callable[[Path], None], flags: int) -> None:
    put(tmp_path / "x")
    with pytest.raises(NoFileError, match=r"x is .*, not a file"):
        open_file(tmp_path / "x", flags)


def test_a_file_that_is_made_meanwhile_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = tmp_path / "x", os.open

    def racing(given: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_EXCL and not path.exists():
            path.write_bytes(b"theirs")
        return real(given, flags, mode)

    monkeypatch.setattr(os, "open", racing)
    os.close(open_file(path, os.O_RDWR | os.O_CREAT))
    assert read_file(path) == b"theirs"


def test_the_way_is_made_as_often_as_it_must(tmp_path: Path) -> None:
    path = tmp_path / "x"
    assert make_way(path) is None
    names = []
    for _ in range(3):
        path.mkdir()
        aside = make_way(path)
        assert aside is not None
        names.append(aside.name)
    assert names == ["x.moved-aside", "x.moved-aside1", "x.moved-aside2"]
    path.write_bytes(b"")
    assert make_way(path) is None and path.exists()


# Data folders


def a_file(path: Path) -> Path:
    path.write_text("x")
    return path


def below_a_file(path: Path) -> Path:
    path.write_text("x")
    return path / "data"


def a_loop(path: Path) -> Path:
    path.symlink_to(path.name)
    return path


def to_nowhere(path: Path) -> Path:
    path.symlink_to("nowhere")
    return path


def too_long(path: Path) -> Path:
    return path / "/".join(["x" * 200] * 25)


def with_nul(path: Path) -> Path:
    return path / "a\0b"


def a_fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (a_file, "x is a file, not a folder; move it away, or name another data folder"),
        (below_a_file, "x is a file, not a folder; move it away, or name another data folder"),
        (a_loop, "x is a link that leads nowhere, not a folder; move it away, or name"),
        (to_nowhere, "x is a link that leads nowhere, not a folder; move it away, or name"),
        (a_fifo, "x is a FIFO, not a folder; move it away, or name another"),
        (too_long, "or a name in it, is too long; name another data folder"),
        (with_nul, "no path contains a NUL; name another data folder"),
    ],
)
def test_a_data_folder_that_cannot_be_one(tmp_path: Path, make: Callable[[Path], Path], said: str) -> None:
    with pytest.raises(MisplacedError) as caught:
        opened(make(tmp_path / "x"))
    assert said in str(caught.value) and "cannot use" in str(caught.value)
    assert "check the device" not in str(caught.value)


@pytest.fixture
def enterable() -> Iterator[Path]:
    """A folder that other users may enter, which they may not those of pytest."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o711)
        yield Path(made)


@pytest.mark.skipif(os.geteuid() != 0, reason="changes the user that looks")
@pytest.mark.parametrize("mode", [0o000, 0o500, 0o555])
def test_a_data_folder_of_somebody_else(enterable: Path, mode: int) -> None:
    """As another user, in a process of its own."""
    path = enterable / "data"
    path.mkdir(mode=0o700)
    path.chmod(mode)
    script = (
        "import os, sys\n"
        "from insync.storage import LogDirectory, MisplacedError\n"
        "os.setuid(65534)\n"
        "for name in ('', '/below'):\n"
        "    try:\n"
        f"        LogDirectory({str(path)!r} + name, cluster_id='c', node_id=1)\n"
        "    except MisplacedError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stderr
    for line in lines:
        assert f"user 65534 may not write to {path}; run the node as its owner" in line


def test_a_relative_path_and_a_link_are_folders_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    opened(Path("some/where")).close()
    Path("link").symlink_to("some/where")
    directory = opened(Path("link"))
    with pytest.raises(StorageError, match="is in use by process"):
        opened(Path("some/where"))
    directory.close()
