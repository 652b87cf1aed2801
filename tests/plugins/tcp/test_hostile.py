"""Strangers at the door of tcp:// and tls://: one clear line in the log, bounded memory, the next is served."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import re
import socket

import attrs
import pytest
import trio
import trio.testing

from insync.transport import Identity, Limits, ProtocolError, ReceiveBudget, Security, connect, serve
from insync.transport.connections._handshake import introduce, judge_acceptor, make_hello
from insync.transport.frames import FrameType, encode_header, encode_hello
from insync.transport.kit._frame import until
from insync.transport.registry import resolve
from insync.transport.repeats import BURST, REPEATS

from .certificates import Authority

NODE = Identity("kit", 1, 1)
SECRET = Security(secret=b"s" * 32)
MIB = 1 << 20
HELLO = encode_hello(make_hello(Identity("kit", 9, 9), "", Limits(), proves=True))
REQUEST = encode_header(FrameType.REQUEST, 1, kind=1, body=b"let me in")
GARBAGE = {
    "random bytes": (random.Random(5).randbytes(4096), "no peer of this protocol"),
    "http": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(24), r"no peer of this protocol.*GET"),
    "a tls hello": (bytes.fromhex("16030100c8010000c40303") + bytes(200), "no peer of this protocol"),
    "a Kafka client": (
        bytes.fromhex("00000024001200030000000100077264") + bytes(24),
        "looks like a Kafka client",
    ),
    "half a preface": (HELLO[:13], "inside a frame"),
    "half a hello": (HELLO[:40], "inside a frame"),
    "a hello of 4 GiB": (HELLO[:12] + b"\xff" * 4 + HELLO[16:], "announced, above"),
    "a request instead of a proof": (HELLO + REQUEST, "before the handshake was over"),
    "a wrong proof": (HELLO + encode_header(FrameType.REPLY, 0, body=bytes(32)), "secrets differ"),
    "lengths of 2^64-1": (
        HELLO + encode_header(FrameType.REPLY, 0, payload_length=(1 << 64) - 1),
        "the limits are",
    ),
    "another secret's silence": (encode_hello(make_hello(Identity(), "", Limits())), "has a secret"),
    "nothing": (b"", "closed the connection"),
}


def answer(request):
    request.payload.release()
    request.reply(b"reached")


async def listen(nursery, security, url="tcp://127.0.0.1:0", handler=answer, **settings):
    start = functools.partial(serve, url, handler, identity=NODE, security=security, **settings)
    return (await nursery.start(start)).endpoints[0]


async def knock(url, data):
    """Say this and leave; returns when the other side has hung up, too."""

    def talk():
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=5) as stranger:
            stranger.sendall(data)
            with contextlib.suppress(OSError):
                # The other side may have hung up already: then there is nothing to shut down, or to read.
                stranger.shutdown(socket.SHUT_WR)
                while stranger.recv(4096):
                    pass

    await trio.to_thread.run_sync(talk)


def complaints(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "insync.transport"]


@pytest.mark.parametrize("kind", GARBAGE)
async def test_one_line_tells_what_was_wrong_and_with_whom(kind, caplog):
    data, words = GARBAGE[kind]
    async with trio.open_nursery() as nursery:
        accepted = []
        url = await listen(nursery, SECRET, on_connect=accepted.append)
        await knock(url, data)
        await until(lambda: complaints(caplog), "it is logged")
        connection = await connect(url, identity=Identity("kit", 2, 1), nursery=nursery, security=SECRET)
        (await connection.request(1, timeout=5)).release()
        assert len(accepted) == 1, "only the good peer came in"
        nursery.cancel_scope.cancel()
    (line,) = complaints(caplog)
    assert re.search(words, line) and "tcp://127.0.0.1:" in line, line
    assert "s" * 32 not in line


async def test_a_server_that_speaks_first_is_told_from_a_peer_by_its_first_bytes():
    """As SSH and mail do, with a line shorter than a preface; then it waits for the client."""

    async def greet(stream):
        await stream.send_all(b"SSH-2.0-x\r\n")
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(functools.partial(trio.serve_tcp, greet, 0, host="127.0.0.1"))
        url = f"tcp://127.0.0.1:{listener.socket.getsockname()[1]}"
        with pytest.raises(ProtocolError, match=r"no peer of this protocol: it sent b'SSH-2\.0-x"):
            await connect(url, identity=Identity(), nursery=nursery, timeout=60)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("cut", [*range(0, len(HELLO) + 49, 5), len(HELLO) - 1, len(HELLO), len(HELLO) + 47])
async def test_a_handshake_cut_anywhere_harms_nobody(cut):
    async with trio.open_nursery() as nursery:
        accepted = []
        url = await listen(nursery, SECRET, on_connect=accepted.append)
        await knock(url, (HELLO + encode_header(FrameType.REPLY, 0, body=bytes(32)))[:cut])
        connection = await connect(url, identity=Identity(), nursery=nursery, security=SECRET)
        (await connection.request(1, timeout=5)).release()
        assert len(accepted) == 1
        nursery.cancel_scope.cancel()


async def test_a_hundred_half_open_links_make_room_the_oldest_first(caplog, monkeypatch):
    monkeypatch.setattr(REPEATS, "_now", lambda: 0.0)  # another line may be logged after each second
    limits = Limits(max_half_open=64, handshake_timeout=60)
    async with trio.open_nursery() as nursery:
        url = await listen(nursery, SECRET, limits=limits)
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        silent = [socket.create_connection(address) for _ in range(100)]
        try:
            with trio.fail_after(60):
                connection = await connect(url, identity=Identity(), nursery=nursery, security=SECRET)
                (await connection.request(1, timeout=5)).release()
            await until(lambda: is_hung_up(silent[36]), "all have made room")
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert [is_hung_up(one) for one in silent] == [True] * 37 + [False] * 63
        finally:
            for one in silent:
                one.close()
        nursery.cancel_scope.cancel()
    assert len(complaints(caplog)) == BURST, "a few lines, not one for each"


def is_hung_up(sock):
    sock.setblocking(False)
    try:
        while sock.recv(4096):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


async def test_announced_payloads_get_no_memory_beyond_the_budget():
    """Forty peers announce 32 MiB each and send one: the budget lets in two, the others wait unread."""
    budget, kept = ReceiveBudget(64 * MIB), []
    async with trio.open_nursery() as nursery:
        url = await listen(nursery, SECRET, handler=kept.append, budget=budget)
        transport, endpoint = resolve(url)
        before, links = resident(), []
        head = encode_header(FrameType.REQUEST, 1, payload_length=32 * MIB)
        for _ in range(40):
            link = await transport.connect(endpoint)
            mine = make_hello(Identity(), "", Limits(), proves=True)
            await introduce(link, mine, judge_acceptor, dialer=True, secrets=SECRET.secrets)
            nursery.start_soon(_try, link.send, head, [bytes(MIB)])
            links.append(link)
        await until(lambda: budget.used == 64 * MIB, "the budget is used up")
        connection = await connect(url, identity=Identity(), nursery=nursery, security=SECRET)
        connection.request_nowait(7, b"served all the same", timeout=60, on_done=lambda _: None)
        await until(lambda: any(request.kind == 7 for request in kept), "others are served")
        assert budget.used == 64 * MIB
        assert resident() - before < 200 * MIB, "1280 MiB were announced"
        for link in links:
            link.abort()
        await until(lambda: budget.used == 0, "who has gone gives the room back", timeout=30)
        nursery.cancel_scope.cancel()


async def _try(send, *arguments):
    with contextlib.suppress(Exception):
        await send(*arguments)


async def test_answers_that_nobody_asked_for_get_no_memory(caplog):
    async with trio.open_nursery() as nursery:
        accepted = []
        url = await listen(nursery, SECRET, on_connect=accepted.append)
        transport, endpoint = resolve(url)
        link = await transport.connect(endpoint)
        mine = make_hello(Identity(), "", Limits(), proves=True)
        await introduce(link, mine, judge_acceptor, dialer=True, secrets=SECRET.secrets)
        await link.send(encode_header(FrameType.REPLY, 2, payload_length=64 * MIB), [b"x"])
        with trio.fail_after(30):
            await accepted[0].closed.wait()
        assert "which is not open" in str(accepted[0].close_reason)
        link.abort()
        nursery.cancel_scope.cancel()
    assert "which is not open" in complaints(caplog)[-1]


async def test_tls_strangers_are_one_line_each(tmp_path, caplog):
    authority = Authority(tmp_path)
    security = Security(tls=authority.files("isr://kit/1"))
    async with trio.open_nursery() as nursery:
        accepted = []
        url = await listen(nursery, security, "tls://127.0.0.1:0", on_connect=accepted.append)
        for count, data in enumerate(
            (b"GET / HTTP/1.1\r\n\r\n", HELLO, random.Random(1).randbytes(999), b""), 1
        ):
            await knock(url, data)
            await until(lambda count=count: len(complaints(caplog)) == count, "it is logged")
        good = attrs.evolve(security, tls=authority.files("isr://kit/2"))
        connection = await connect(url, identity=Identity("kit", 2, 1), nursery=nursery, security=good)
        (await connection.request(1, timeout=5)).release()
        assert len(accepted) == 1
        nursery.cancel_scope.cancel()
    assert all("tls://127.0.0.1:" in line for line in complaints(caplog))
