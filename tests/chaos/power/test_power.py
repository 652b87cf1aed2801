"""Machines that lose their power hold what was brought to their devices, and nothing else."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.devices import CannotMountError
from tests.requires import missing
from tests.tiers import uses

from .machine import Machine, machine


@pytest.fixture
@uses("power")
def on(tmp_path: Path) -> Iterator[Machine]:
    try:
        with machine(tmp_path / "machine", "a", "b") as found:
            yield found
    except CannotMountError as error:
        missing(str(error))


def run(on: Machine, script: str) -> str:
    command = [*on.command, "sh", "-c", script]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def test_only_what_is_on_a_device_survives_a_cut(on: Machine) -> None:
    a, b = on.places
    run(on, f"echo 1 > {a}/synced; echo 1 > {b}/whole")
    on.sync(a)
    on.sync(b)
    run(on, f"echo 2 >> {a}/synced; echo 2 > {a}/loose; echo 2 > {b}/flushed; sync {b}/flushed")
    on.cut()
    on.boot()
    assert run(on, f"cat {a}/synced") == "1"
    assert run(on, f"ls {a}") == "lost+found\nsynced"
    assert (on.inside(b) / "flushed").read_text() == "2\n"


def test_a_machine_ends_with_whoever_runs_it(on: Machine) -> None:
    child = subprocess.Popen([*on.command, "sleep", "1000"])
    assert on.init is not None and on.init.stdin is not None
    on.init.stdin.close()
    assert child.wait(10) == -9
    assert on.init.wait(10) == 0


def test_no_process_of_a_machine_outlives_its_boot(on: Machine) -> None:
    boot_id = run(on, "cat /proc/sys/kernel/random/boot_id")
    child = subprocess.Popen(
        [*on.command, "sh", "-c", "sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    grandchild = Path(f"/proc/{child.stdout.readline().strip()}/exe")
    assert grandchild.resolve(strict=True)
    on.cut()
    assert child.wait(10) == -9
    child.stdout.close()
    assert not grandchild.exists()
    on.boot()
    assert run(on, "cat /proc/sys/kernel/random/boot_id") != boot_id
    assert Path("/proc/sys/kernel/random/boot_id").read_text().strip() != boot_id
