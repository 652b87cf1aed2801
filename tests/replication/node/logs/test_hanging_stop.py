"""A node stops though a device hangs: the directory is left as a kill would leave it, and never called clean."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from insync.replication import Node
from insync.storage import LogDirectory

from ..test_cluster import settings
from ..test_parts import replicas


async def test_a_node_has_left_the_cluster_before_its_logs_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Others lead meanwhile: logs may take long to close."""
    close, before = LogDirectory.close, list[str]()

    def closed(directory: LogDirectory, *how: Any, **more: Any) -> None:
        before.extend(each.getMessage() for each in caplog.records)
        close(directory, *how, **more)

    monkeypatch.setattr(LogDirectory, "close", closed)
    with caplog.at_level(logging.INFO, logger="insync.node"):
        async with Node(settings(tmp_path, 1)):
            pass
    assert 'event=session_changed state=ended why="the node stops"' in before


@pytest.mark.parametrize("signs", [0, 3], ids=["hangs", "works for a while, then hangs"])
async def test_a_directory_that_hangs_while_the_node_stops_is_not_clean(
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    signs: int,
) -> None:
    """Its stop is waited for as long as something gets done."""
    async with trio.open_nursery() as nursery:
        node = replicas(tmp_path, nursery)
        (home,) = node.directories.all
        counts = iter([*range(signs * 2)])

        class Hanging:
            @property
            def signs_of_life(self) -> tuple[int, int]:
                return next(counts, -1), 0

            async def stop(self) -> None:
                await trio.sleep_forever()

        monkeypatch.setattr(home, "writer", Hanging())
        stall = node.settings.storage_stall_timeout_ms / 1000
        began = trio.current_time()
        with caplog.at_level(logging.ERROR):
            await node.directories.stop_threads()
        assert trio.current_time() - began == pytest.approx(stall * (signs + 1))
        assert home.is_stuck and "its device hung" in home.failure
        (told,) = caplog.records
        assert str(tmp_path) in told.getMessage() and "the next start of the node checks" in told.getMessage()
        caplog.clear()
        node.directories.give_up_at_stop(home)
        assert caplog.records == [], "it is told once"
        nursery.cancel_scope.cancel()


async def test_a_directory_that_has_failed_before_is_given_a_moment_to_stop(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with trio.open_nursery() as nursery:
        node = replicas(tmp_path, nursery)
        (home,) = node.directories.all
        home.is_stuck, home.failure = True, "a write has not finished"
        monkeypatch.setattr(home.keeper, "stop", partial(trio.sleep, float("inf")))
        began = trio.current_time()
        await node.directories.stop_threads()
        assert trio.current_time() - began < node.settings.storage_stall_timeout_ms / 1000
        assert home.failure == "a write has not finished"
        nursery.cancel_scope.cancel()
