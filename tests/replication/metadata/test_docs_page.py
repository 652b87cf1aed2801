"""The example of docs/writing-a-metadata-store.md is a conforming store."""

import re
from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from insync.replication.metadata.testing import CASES, Case

PAGE = Path(__file__).parents[3] / "docs" / "writing-a-metadata-store.md"


def example() -> dict[str, Any]:
    """What the page's blocks of the example and its bench define."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    for block in blocks:
        if "class Prefixed" in block:
            exec(compile(block, str(PAGE), "exec"), names)
    return names


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_example_conforms(case: Case, autojump_clock: MockClock) -> None:
    await case.run(example()["PrefixedBench"]())


async def test_url_of_the_example(tmp_path: Path) -> None:
    async with example()["make"](f"prefixed://blue/sqlite://{tmp_path}/meta.db") as store:
        assert (await store.get("k")).entry is None
