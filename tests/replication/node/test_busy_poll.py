"""`busy_poll_us` of nodes and producers: after a record the event loop polls; without it nothing ever does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from insync.replication import Admin, Node, Producer
from insync.replication.client import InvalidSettingError
from insync.replication.node import NodeStartError
from insync.transport import polling
from insync.transport._native import lib

from .test_cluster import settings

MOST = polling.MOST_MICROSECONDS


class Seen:
    def __init__(self) -> None:
        self.times = 0

    def isr_poll_until(self, fd: int, until_ns: int) -> int:
        self.times += 1
        return lib.isr_poll_until(fd, until_ns)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    found = Seen()
    monkeypatch.setattr(polling, "lib", found)
    return found


async def send(node: Node, seen: Seen, busy_poll_us: int = 0) -> None:
    """A record, and more of them until the loop has polled: a machine that stands still may let the time pass."""
    async with (
        Admin(node.endpoints) as admin,
        Producer(node.endpoints, linger_ms=0, busy_poll_us=busy_poll_us) as producer,
    ):
        await admin.create_topic("t", partitions=1, replication_factor=1)
        await producer.prepare("t")
        seen.times = 0
        await producer.send_and_wait("t", b"x")
        if busy_poll_us or node.settings.busy_poll_us:
            with trio.fail_after(60):
                while not seen.times:
                    await producer.send_and_wait("t", b"x")
        else:
            assert seen.times == 0


@pytest.mark.parametrize(("of_node", "of_producer"), [(0, 0), (MOST, 0), (0, MOST)])
async def test_polls_after_a_record_if_told_to(
    tmp_path: Path, seen: Seen, of_node: int, of_producer: int
) -> None:
    async with Node(settings(tmp_path, 1, busy_poll_us=of_node)) as node:
        await send(node, seen, of_producer)
    seen.times = 0
    await trio.sleep(0.001)
    assert seen.times == 0


async def test_an_idle_node_and_an_idle_producer_do_not_poll(tmp_path: Path, seen: Seen) -> None:
    async with Node(settings(tmp_path, 1, busy_poll_us=MOST)) as node:
        async with Producer(node.endpoints, busy_poll_us=MOST):
            await trio.sleep(0.01)
        assert seen.times == 0


async def test_what_cannot_poll_says_so_at_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Iterator[tuple[int, str]]:
        return iter(())

    async with Node(settings(tmp_path, 1)) as node:
        monkeypatch.setattr(polling, "_epolls", none)
        with pytest.raises(InvalidSettingError, match="busy_poll_us is 7: no epoll"):
            async with Producer(node.endpoints, busy_poll_us=7):
                pass
    with pytest.raises(NodeStartError, match=r"node 1 cannot start: no epoll.*set busy_poll_us to 0"):
        async with Node(settings(tmp_path, 1, busy_poll_us=7)):
            pass


def test_a_producer_polls_for_a_second_at_most() -> None:
    Producer("tcp://127.0.0.1:1", busy_poll_us=MOST)
    with pytest.raises(InvalidSettingError, match=r"busy_poll_us is 1000001; it must be at most 1000000"):
        Producer("tcp://127.0.0.1:1", busy_poll_us=MOST + 1)
    with pytest.raises(InvalidSettingError, match=r"busy_poll_us is -1; it must not be negative"):
        Producer("tcp://127.0.0.1:1", busy_poll_us=-1)
