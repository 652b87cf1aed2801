"""Many who come at one moment: who is nearly done is not pushed out by who came last."""

from functools import partial

import trio

from insync.transport import Identity, Limits, connect, serve
from insync.transport.connections._handshake import make_hello
from insync.transport.frames import FrameType, encode_header, encode_hello
from insync.transport.registry import resolve

URL = "mem://rush/server"
ROOM = 4


def answer(request):
    request.payload.release()
    request.reply()


async def start(nursery):
    limits = Limits(max_half_open=ROOM, handshake_timeout=60)
    await nursery.start(partial(serve, URL, answer, identity=Identity("c", 1, 1), limits=limits))


async def half_way(*, speaks):
    """A link whose handshake has begun, and is not over."""
    transport, endpoint = resolve(URL)
    link = await transport.connect(endpoint)
    if speaks:
        await link.send(encode_hello(make_hello(Identity(), "", Limits())), ())
        await link.recv_hello()
    return link


async def test_who_is_nearly_done_is_not_pushed_out(nursery, autojump_clock):
    await start(nursery)
    links = [await half_way(speaks=True) for _ in range(ROOM)]
    late = []

    async def come_late():
        late.append(await connect(URL, identity=Identity(), nursery=nursery))

    with trio.fail_after(5):
        async with trio.open_nursery() as coming:
            for _ in range(2 * ROOM):
                coming.start_soon(come_late)
            await trio.sleep(0.5)
            assert not late, "there is no room yet"
            for link in links:
                await link.send(encode_header(FrameType.REPLY, 0), ())
                assert (await link.recv_many())[0].header.type == FrameType.REPLY, "accepted"
    assert len(late) == 2 * ROOM


async def test_who_says_nothing_or_never_ends_makes_room(nursery, autojump_clock):
    for speaks, seconds in ((False, 0.5), (True, 1.5)):
        async with trio.open_nursery() as inner:
            await start(inner)
            links = [await half_way(speaks=speaks) for _ in range(ROOM)]
            began = trio.current_time()
            await connect(URL, identity=Identity(), nursery=inner)
            assert trio.current_time() - began < seconds
            for link in links:
                link.abort()
            inner.cancel_scope.cancel()
