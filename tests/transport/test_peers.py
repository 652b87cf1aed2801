import contextlib
import itertools

import pytest
import trio

from insync.transport import ConnectError, Identity, LinkClosed, PeerManager, WrongPeerError, serve
from insync.transport._kit import until
from insync.transport.peers import CONTROL_LANE, Reconnect

_numbers = itertools.count()


@pytest.fixture
def url():
    return f"mem://peers/{next(_numbers)}"


@contextlib.asynccontextmanager
async def node(url, node_id=2):
    """A node that echoes; gives its connections."""
    connections = []

    async def start(task_status):
        await serve(
            url,
            lambda request: request.reply(request.body),
            identity=Identity("c", node_id, 1),
            on_connect=connections.append,
            task_status=task_status,
        )

    async with trio.open_nursery() as nursery:
        await nursery.start(start)
        try:
            yield connections
        finally:
            nursery.cancel_scope.cancel()


class Watcher:
    def __init__(self):
        self.events = []
        self.news = trio.Event()

    def up(self, peer, connection):
        self._add("up", peer)

    def down(self, peer, reason):
        self._add("down", peer)

    def _add(self, what, peer):
        self.events.append((what, peer.node_id))
        self.news.set()
        self.news = trio.Event()

    async def until(self, events):
        with trio.fail_after(30):
            while self.events != events:
                await self.news.wait()


@pytest.fixture
async def manager(nursery):
    watcher = Watcher()
    manager = PeerManager(Identity("c", 1, 1), nursery, peer_up=watcher.up, peer_down=watcher.down, seed=1)
    manager.watcher = watcher
    return manager


async def test_lanes_are_connections_of_their_own_opened_when_needed(manager, url, autojump_clock):
    async with node(url) as connections:
        peer = manager.add(2, [url])
        assert not connections
        for lane in ("data", "data", CONTROL_LANE):
            with await peer.request(lane, 1, lane.encode(), timeout=5) as response:
                assert response.body == lane.encode()
        assert sorted(connection.peer.lane for connection in connections) == [CONTROL_LANE, "data"]
        assert peer.is_up and peer.connection("bulk") is None


async def test_a_peer_that_is_down_is_refused_at_once_and_comes_back(manager, url, autojump_clock):
    peer = manager.add(2, [url])
    with pytest.raises(ConnectError, match=r"node 2 is down on lane 'data'.*nobody listens"):
        await peer.request("data", 1, timeout=5)
    start = trio.current_time()
    with pytest.raises(ConnectError):
        await peer.request("data", 1, timeout=5)
    assert trio.current_time() == start
    async with node(url):
        await until(lambda: peer.connection("data") is not None, "the peer is found again")
        (await peer.request("data", 1, timeout=5)).release()


async def test_up_and_down_follow_the_control_lane(manager, url, autojump_clock):
    peer = manager.add(2, [url])
    async with node(url) as connections:
        peer.open(CONTROL_LANE)
        await manager.watcher.until([("up", 2)])
        (await peer.request("data", 1, timeout=5)).release()
        before = peer.connection("data")
        for connection in connections:
            if connection.peer.lane == "data":
                connection.abort("for the test")
        await until(lambda: peer.connection("data") not in (None, before), "the data lane is back")
        assert manager.watcher.events == [("up", 2)]
    await manager.watcher.until([("up", 2), ("down", 2)])
    assert not peer.is_up
    async with node(url):
        await manager.watcher.until([("up", 2), ("down", 2), ("up", 2)])


async def test_the_next_address_is_tried(manager, url, autojump_clock):
    async with node(url):
        peer = manager.add(2, ["mem://peers/nobody", url])
        (await peer.request("data", 1, timeout=5)).release()


async def test_another_node_at_the_address_is_not_taken_for_the_peer(manager, url, autojump_clock):
    async with node(url, node_id=3):
        peer = manager.add(2, [url])
        with pytest.raises(ConnectError, match="node 2 is wanted, but node 3 answers"):
            await peer.request("data", 1, timeout=5)
        assert manager.pause(1, WrongPeerError("")) > 0.6


async def test_removing_a_peer_ends_its_connections(manager, url, autojump_clock):
    async with node(url):
        peer = manager.add(2, [url])
        (await peer.request(CONTROL_LANE, 1, timeout=5)).release()
        connection = peer.connection(CONTROL_LANE)
        assert manager.add(2, [url]) is peer
        other = manager.add(2, ["mem://peers/elsewhere"])
        assert other is not peer and manager.get(2) is other
        with trio.fail_after(1):
            await connection.closed.wait()
        with pytest.raises((LinkClosed, ConnectError)):
            await peer.request("new", 1, timeout=5)
        other.remove()
        assert manager.get(2) is None


def test_pauses_grow_to_a_limit_and_are_spread():
    reconnect = Reconnect(first=0.1, factor=2, most=1.0, jitter=0.5)
    assert [round(reconnect.pause(failures, 0.0), 3) for failures in (1, 2, 3, 4, 5, 500)] == [
        0.1,
        0.2,
        0.4,
        0.8,
        1,
        1,
    ]
    assert reconnect.pause(1, 1.0) == 0.05
