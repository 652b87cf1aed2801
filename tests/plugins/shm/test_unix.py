"""Addresses, leftovers and users: what the kit cannot know of unix sockets."""

import fcntl
import os
import socket
import stat
import threading

import pytest
import trio

from insync.plugins.shm import UnixTransport
from insync.plugins.shm._address import Claim
from insync.transport import URL, AddressInUseError, AuthError, ConnectError, Identity, connect, serve
from tests.requires import missing

NOBODY = 65534


def parse(text):
    return UnixTransport().parse(URL.parse(text))


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


async def test_nobody_else_may_open_the_socket_file(folder):
    before = os.umask(0)
    try:
        listener = await UnixTransport().listen(parse(f"unix://{folder}/n.sock"))
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(f"{folder}/n.sock").st_mode) == 0o600
    assert stat.S_IMODE(os.stat(f"{folder}/n.sock.lock").st_mode) == 0o600
    await listener.aclose()
    assert os.listdir(folder) == []


async def test_a_dead_process_leaves_a_socket_that_is_replaced(folder):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"{folder}/n.sock")
    write(f"{folder}/n.sock.lock", "")
    with pytest.raises(ConnectError, match="no process listens"):
        await UnixTransport().connect(parse(f"unix://{folder}/n.sock"))
    listener = await UnixTransport().listen(parse(f"unix://{folder}/n.sock"))
    (await UnixTransport().connect(listener.endpoints[0])).abort()
    await listener.aclose()


async def test_a_file_of_another_kind_is_left_alone(folder):
    write(f"{folder}/data", "precious")
    with pytest.raises(AddressInUseError, match="another kind"):
        await UnixTransport().listen(parse(f"unix://{folder}/data"))
    assert os.stat(f"{folder}/data").st_size == len("precious")
    assert os.listdir(folder) == ["data"]


async def test_many_who_listen_at_once_get_the_path_one_by_one(folder):
    """The lock's file is removed by who lets go of it: two must never hold two files of one name."""
    holders, most = [], []

    def compete():
        async def main():
            for _ in range(50):
                try:
                    listener = await UnixTransport().listen(parse(f"unix://{folder}/n.sock"))
                except AddressInUseError:
                    continue
                holders.append(1)
                most.append(len(holders))
                holders.pop()
                await listener.aclose()

        trio.run(main)

    threads = [threading.Thread(target=compete) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1 and os.listdir(folder) == []


def test_a_lock_that_was_removed_before_it_was_held_is_worth_nothing(folder, monkeypatch):
    """Its holder let go of it just then, and another may lock a new file of that name."""
    lock, path, removed = fcntl.flock, f"{folder}/n.sock.lock", []

    def lock_too_late(fd, how):
        if not removed:
            removed.append(os.unlink(path))
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", lock_too_late)
    claim = Claim.take(parse(f"unix://{folder}/n.sock"))
    assert os.path.samestat(os.stat(path), os.fstat(claim._lock))
    claim.release()
    assert os.listdir(folder) == [] and removed


@pytest.mark.parametrize("url", ["unix:///run/n.sock", "unix://@name"])
def test_who_is_on_another_machine_does_not_try(url):
    transport = UnixTransport()
    assert transport.can_dial(parse(url))
    assert not transport.can_dial(parse(f"{url}?host=0123456789abcdef"))


async def test_a_listener_says_where_it_is(folder):
    for url in (f"unix://{folder}/n.sock", "unix://@"):
        listener = await UnixTransport().listen(parse(url))
        (endpoint,) = listener.endpoints
        assert dict(endpoint.options)["host"] and UnixTransport().can_dial(endpoint)
        await listener.aclose()


async def test_a_full_queue_is_waited_for(folder, monkeypatch, nursery):
    monkeypatch.setattr("insync.plugins.shm._unix._BACKLOG", 0)
    listener = await UnixTransport().listen(parse(f"unix://{folder}/n.sock"))
    links = []

    async def dial():
        links.append(await UnixTransport().connect(listener.endpoints[0]))

    for _ in range(3):
        nursery.start_soon(dial)
    for _ in range(3):
        links.append(await listener.accept())
    with trio.fail_after(30):
        while len(links) < 6:  # noqa: ASYNC110 - the dialers' last steps
            await trio.sleep(0.001)
    for link in links:
        link.abort()
    await listener.aclose()


def as_nobody(run):
    """Run it in a child process of another user; gives its exit status."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setuid(NOBODY)
            status = run()
        finally:
            os._exit(status)
    return pid


def other_users():
    if os.geteuid() != 0:
        missing("root, to become another user")


async def test_another_user_is_refused(nursery, caplog):
    other_users()

    async def start(task_status):
        await serve("unix://@", print, identity=Identity("c", 1, 1), task_status=task_status)

    serving = await nursery.start(start)
    name = "\0" + URL.parse(serving.endpoints[0]).authority[1:]

    def knock():
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(5)
            sock.connect(name)
            return 0 if sock.recv(100) == b"" else 2

    pid = as_nobody(knock)
    _, status = await trio.to_thread.run_sync(os.waitpid, pid, 0)
    assert status == 0
    assert f"runs as user {NOBODY}" in caplog.text
    connection = await connect(serving.endpoints[0], identity=Identity(), nursery=nursery)
    assert connection.peer.method == "uid" and connection.peer.verified
    await connection.aclose()


async def test_the_listener_of_another_user_is_refused(nursery):
    other_users()
    ready, tell = os.pipe()
    name = f"insync-test-{os.getpid()}"

    def listen():
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(f"\0{name}")
            sock.listen()
            os.write(tell, b"x")
            link, _ = sock.accept()
            return 0 if link.recv(100) == b"" else 2

    pid = as_nobody(listen)
    try:
        os.read(ready, 1)
        with pytest.raises(AuthError, match=f"user {NOBODY}"):
            await connect(f"unix://@{name}", identity=Identity(), nursery=nursery)
    finally:
        _, status = await trio.to_thread.run_sync(os.waitpid, pid, 0)
        os.close(ready)
        os.close(tell)
    assert status == 0
