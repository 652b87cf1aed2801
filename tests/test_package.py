"""`insync` is a regular package: a folder of that name does not hide it, and others may add plugins to it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import insync


def run(program: str, folder: Path, *path: Path) -> str:
    """What a program prints that stands in `folder`, with `path` in PYTHONPATH."""
    (folder / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_clone_named_insync_beside_a_program_hides_nothing(tmp_path: Path) -> None:
    for room in ("storage", "replication", "transport", "plugins/tcp"):
        (tmp_path / "insync" / room).mkdir(parents=True)
        (tmp_path / "insync" / room / "__init__.py").write_text("raise ImportError('this is the clone')")
    program = "import insync.storage, insync.replication, insync.plugins.tcp; print(insync.storage.__file__)"
    found = Path(run(program, tmp_path))
    assert not found.is_relative_to(tmp_path)


def test_another_distribution_adds_a_plugin(tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "insync" / "plugins" / "pigeon").mkdir(parents=True)
    (other / "insync" / "plugins" / "pigeon" / "__init__.py").write_text("SCHEME = 'pigeon'")
    program = "from insync.plugins import pigeon, tcp; print(pigeon.SCHEME, tcp.__name__)"
    assert run(program, tmp_path, other) == "pigeon insync.plugins.tcp"


def test_the_version_is_that_of_the_distribution() -> None:
    assert insync.__version__ == version("insync")
    with pytest.raises(AttributeError, match="no attribute 'versoin'"):
        _ = insync.versoin


def test_python_m_insync_is_the_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "insync", "--version"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, version("insync")), done.stderr


def test_help_names_every_public_room() -> None:
    overview = insync.__doc__ or ""
    for room in (
        "replication",
        "replication.asyncio",
        "replication.simulation",
        "storage",
        "transport",
        "plugins",
    ):
        assert f"insync.{room} " in overview
