"""The fuzzer finds what is wrong, and C agrees with the reference in Python on inputs of every kind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ..requires import missing
from . import _fuzzing as fuzzing
from . import arrow, storage
from ._fuzzing import MISSING, Target, fuzz, is_there

HARNESS = """
#include "input.h"
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in;
    if (!take_input(&in, data, size))
        return 0;
    if (PLANTED && in.small == 77)
        in.bytes[in.len] = 0;
    CHECK(!PLANTED || in.medium != 4321);
    free_input(&in);
    return 0;
}
"""


@pytest.fixture
def clang() -> None:
    if not is_there():
        missing(MISSING)


def planted(folder: Path, monkeypatch: pytest.MonkeyPatch, *, errors: bool, **options: object) -> Target:
    """A target with two errors in it, or none."""
    (folder / "planted.c").write_text(f"#define PLANTED {errors:d}\n{HARNESS}")
    (folder / "input.h").write_text((fuzzing.HARNESSES / "input.h").read_text())
    monkeypatch.setattr(fuzzing, "HARNESSES", folder)
    return attrs.evolve(Target("planted", (), lambda: [bytes(20)]), **options)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "input_, said", [(b"\0M" + bytes(20), "overflow"), (b"\0\0\x10\xe1" + bytes(20), "4321")]
)
def test_errors_are_found_and_their_input_kept(
    clang: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, input_: bytes, said: str
) -> None:
    target = planted(tmp_path, monkeypatch, errors=True, seeds=lambda: [input_])
    outcome = fuzz(target, tmp_path, 1, seed=1)
    assert said in outcome.failure
    assert outcome.input_file is not None
    assert outcome.input_file.read_bytes() == input_


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_difference_from_the_reference_is_found(
    clang: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def differ(data: bytes) -> None:
        assert len(data) != 20, "twenty"

    target = planted(tmp_path, monkeypatch, errors=False, compare=differ, max_len=17)
    outcome = fuzz(target, tmp_path, 1, seed=1)
    assert "twenty" in outcome.failure


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("area", [storage, arrow])
def test_the_command_tells_what_it_did(clang: None, area: ModuleType) -> None:
    name = area.__name__.rpartition(".")[2]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", name, "--seconds", "4", "--json"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["ok"]
    assert [each["name"] for each in said["targets"]] == [target.name for target in area.TARGETS]
    assert all(each["units"] > 40 and each["coverage"] > 20 for each in said["targets"])


@pytest.mark.parametrize("target", storage.TARGETS, ids=lambda target: target.name)
def test_c_agrees_with_python_on_the_inputs_to_begin_with(target: Target) -> None:
    for data in target.seeds():
        if target.compare is not None:
            target.compare(data)


SEEDS = list(storage.TARGETS[0].seeds())


changed_bytes = st.lists(st.tuples(st.integers(0, 1500), st.integers(0, 255)), max_size=6)


@given(st.sampled_from(SEEDS), changed_bytes, st.data())
def test_c_agrees_with_python_on_damaged_batches(seed: bytes, changes: list[tuple[int, int]], data) -> None:
    raw = bytearray(seed)
    for at, value in changes:
        raw[at % len(raw)] = value
    cut = data.draw(st.integers(0, len(raw)) | st.just(len(raw)))
    storage.compare_batches(bytes(raw[:cut]))
    storage.compare_files(bytes(raw[:cut]))
