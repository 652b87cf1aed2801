"""What the thread that runs trio for others says when it ends by an error."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from insync.replication._portal import Portal


async def fail(*errors: Exception) -> None:
    """As tasks of a nursery do, which puts them into groups."""
    async with trio.open_nursery() as outer, trio.open_nursery() as inner:
        for error in errors:
            inner.start_soon(raised, error)
        outer.start_soon(trio.sleep, 0)


async def raised(error: Exception) -> None:
    raise error


def ended_with(*errors: Exception) -> BaseException | None:
    """A thread in whose block these come up after it was entered."""

    @asynccontextmanager
    async def block() -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            go_on = trio.Event()

            async def fail_later() -> None:
                await go_on.wait()
                await fail(*errors)

            nursery.start_soon(fail_later)
            trio.lowlevel.current_trio_token().run_sync_soon(go_on.set)
            yield
            nursery.cancel_scope.cancel()

    portal = Portal(block, name="insync-test", closed_error=RuntimeError)
    portal.open()
    return portal.ended.exception(5)


def test_the_log_says_what_went_wrong_and_not_how_many_errors_there_were(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR, logger="insync"):
        error = ended_with(OSError("the disk is gone"))
    assert isinstance(error, BaseExceptionGroup)
    assert caplog.messages == ["insync-test ended: the disk is gone"]


def test_of_several_errors_each_is_told_once_and_one_without_a_text_by_its_class(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR, logger="insync"):
        ended_with(OSError("the disk is gone"), OSError("the disk is gone"), ZeroDivisionError())
    ((_, _, said),) = caplog.record_tuples
    assert sorted(said.removeprefix("insync-test ended: ").split("; ")) == [
        "ZeroDivisionError()",
        "the disk is gone",
    ]


def test_a_call_that_comes_while_the_block_is_left_is_refused_and_the_error_is_the_blocks_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The block's error has closed the nursery for calls, and the block has not ended yet."""
    leaving = threading.Event()

    @asynccontextmanager
    async def block() -> AsyncIterator[None]:
        go_on = trio.Event()
        trio.lowlevel.current_trio_token().run_sync_soon(go_on.set)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fail_after, go_on)
                yield
        finally:
            leaving.set()
            with trio.CancelScope(shield=True):
                await called.wait()

    async def fail_after(event: trio.Event) -> None:
        await event.wait()
        raise OSError("the disk is gone")

    async def nothing() -> None:
        pass

    called = trio.Event()
    portal = Portal(block, name="insync-test", closed_error=RuntimeError)
    with caplog.at_level(logging.ERROR, logger="insync"):
        portal.open()
        assert leaving.wait(5)
        call = portal.submit(nothing)
        portal.post(called.set)
        with pytest.raises(RuntimeError, match="closed during the call"):
            call.future.result(5)
        assert "the disk is gone" in repr(portal.ended.exception(5))
    assert caplog.messages == ["insync-test ended: the disk is gone"]
