"""Kazoo's messages of each attempt to connect, and its threads that do not end; no server is needed."""

from __future__ import annotations

import logging
import time

import pytest
import trio
from kazoo.exceptions import WriterNotClosedException

from insync.plugins.zookeeper._address import ZookeeperAddress
from insync.plugins.zookeeper._connection import _SAME_MESSAGE_SECONDS, Connection, InlineHandler, _kazoo_log


def test_the_same_message_is_told_again_only_after_a_while_and_errors_always(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with caplog.at_level(logging.INFO):
        for port in range(3):
            _kazoo_log.info("seldom: connecting to %d", port)
            _kazoo_log.warning("seldom: dropped: %d", port)
            _kazoo_log.error("seldom: failed: %d", port)
        now += _SAME_MESSAGE_SECONDS + 1
        _kazoo_log.info("seldom: connecting to %d", 3)
    assert [record.getMessage() for record in caplog.records] == [
        "seldom: connecting to 0",
        "seldom: dropped: 0",
        "seldom: failed: 0",
        "seldom: failed: 1",
        "seldom: failed: 2",
        "seldom: connecting to 3",
    ]


class StandsStill:
    """As much of kazoo's client as a connection ends; its thread does not come back from a look-up of a name."""

    closed = False

    def stop(self) -> None:
        raise WriterNotClosedException("Writer still open from prior connection")

    def close(self) -> None:
        self.closed = True


async def test_a_thread_that_does_not_end_is_no_error_of_a_close(caplog: pytest.LogCaptureFixture) -> None:
    client = StandsStill()
    connection = Connection(
        address=ZookeeperAddress("127.0.0.1:1", "/insync"),
        client=client,  # type: ignore[arg-type]
        handler=InlineHandler(None),
        pulse=None,
        timeout_ms=6000,
        token=trio.lowlevel.current_trio_token(),
    )
    await connection.close()
    await connection.close()
    assert "left to its timeout" in caplog.text and not client.closed
