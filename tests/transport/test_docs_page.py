"""The examples of docs/writing-a-transport.md are conforming transports, and short."""

from __future__ import annotations

import re
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest

from insync.transport.testing import Case, NotTestedWarning, cases_for, run_case

PAGE = Path(__file__).parents[2] / "docs" / "writing-a-transport.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
TRANSPORTS = [block for block in BLOCKS if "class PipeTransport" in block or "class PacketTransport" in block]


def example() -> dict[str, Any]:
    """What the page's examples and their environments define."""
    names: dict[str, Any] = {}
    for block in BLOCKS:
        if "class Pipe" in block or "class Packet" in block:
            with warnings.catch_warnings(action="ignore", category=NotTestedWarning):
                exec(compile(block, str(PAGE), "exec"), names)
    return names


NAMES = example()


def cases_of(env: Any) -> list[Case]:
    """The cases, without those of another process: it cannot import what stands on a page."""
    with pytest.warns(
        NotTestedWarning, match=r"E_a_killed_peer_is_noticed, .*another process cannot import P"
    ):
        return cases_for(env)


@pytest.mark.slow
@pytest.mark.parametrize("case", cases_of(NAMES["PipeEnv"]("")), ids=lambda case: case.name)
async def test_example_conforms(case: Case, tmp_path: Path) -> None:
    await run_case(case, NAMES["PipeEnv"](tmp_path))


@pytest.mark.parametrize("case", cases_of(NAMES["PacketEnv"]("")), ids=lambda case: case.name)
async def test_message_example_conforms(case: Case) -> None:
    # Not pytest's folder: a socket's path has 107 bytes at most.
    with tempfile.TemporaryDirectory() as folder:
        await run_case(case, NAMES["PacketEnv"](folder))


async def test_an_end_inside_a_frame_that_looks_clean_is_found() -> None:
    """In a message transport, whose frames the kit cannot cut where it likes."""
    (block,) = [block for block in BLOCKS if "class PacketTransport" in block]
    names = dict(NAMES)
    broken = block.replace("EndOfLink if self._lengths is None else LinkBroken", "EndOfLink")
    assert broken != block
    exec(compile(broken, "broken", "exec"), names)
    case_name = "E_an_end_inside_a_frame_is_no_clean_end"
    with tempfile.TemporaryDirectory() as folder:
        env = NAMES["PacketEnv"](folder)
        env.transport = names["PacketTransport"]()
        (case,) = [case for case in cases_of(env) if case.name == case_name]
        with pytest.raises(AssertionError, match="inside a frame was told as EndOfLink"):
            await run_case(case, env)


async def test_a_dead_listeners_door_is_taken_over(tmp_path: Path) -> None:
    transport = NAMES["PipeTransport"]()
    endpoint = transport.parse(NAMES["URL"].parse(f"pipe://{tmp_path}/door"))
    killed = await transport.listen_streams(endpoint)
    killed._door.close()
    await (await transport.listen_streams(endpoint)).aclose()
    assert not (tmp_path / "door").exists()


def test_example_is_short() -> None:
    assert len(TRANSPORTS) == 2
    for block in TRANSPORTS:
        assert len(block.splitlines()) < 150
