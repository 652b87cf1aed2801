"""What kazoo says of each attempt to connect is told once in a while; it needs no server."""

from __future__ import annotations

import logging
import time

import pytest

from insync.plugins.zookeeper._connection import _SAME_MESSAGE_SECONDS, _kazoo_log


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
