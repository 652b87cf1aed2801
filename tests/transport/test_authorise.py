"""The hook that says which peer may send which kind of request."""

import functools

import pytest
import trio

from insync.transport import Identity, NotAuthorisedError, PeerIdentity, RemoteError, connect, serve
from insync.transport.frames import Status

URL = "mem://authorise/node"


async def start(nursery, authorise, reached):
    def handler(request):
        reached.append(request.kind)
        if request.kind == 9:
            request.refuse("not this one")
        request.payload.release()
        request.reply()

    async def run(task_status):
        await serve(URL, handler, identity=Identity("c", 1, 1), authorise=authorise, task_status=task_status)

    await nursery.start(run)
    return functools.partial(connect, URL, nursery=nursery)


async def test_a_refused_kind_reaches_no_handler_and_others_do(caplog):
    reached, asked = [], []

    def authorise(peer, kind):
        asked.append((peer.principal, kind))
        return "nobody may that" if kind == 2 and peer.node_id < 0 else None

    async with trio.open_nursery() as nursery:
        dial = await start(nursery, authorise, reached)
        client, node = await dial(identity=Identity()), await dial(identity=Identity("c", 7, 1))
        for _ in range(3):
            with pytest.raises(NotAuthorisedError, match="nobody may that") as caught:
                await client.request(2, b"", [b"payload"], timeout=5)
            assert caught.value.code == Status.NOT_AUTHORISED
            assert str(int(Status.NOT_AUTHORISED)) not in str(caught.value), (
                "a number that is no help to a user"
            )
            assert not caught.value.retryable and caught.value.delivery == "never"
            (await client.request(1, timeout=5)).release()
            (await node.request(2, timeout=5)).release()
        nursery.cancel_scope.cancel()
    assert reached == [1, 2] * 3
    assert asked == [("client", 2), ("client", 1), ("node/7", 2)], "once for each connection and kind"
    (line,) = [record.message for record in caplog.records if "authorised" in record.message]
    assert "a client (data)" in line and "nobody may that" in line


async def test_a_handler_refuses_what_only_the_body_tells():
    async with trio.open_nursery() as nursery:
        dial = await start(nursery, None, [])
        client = await dial(identity=Identity())
        with pytest.raises(NotAuthorisedError, match="not this one"):
            await client.request(9, timeout=5)
        (await client.request(1, timeout=5)).release()
        nursery.cancel_scope.cancel()


async def test_kinds_without_number_cost_little_and_are_judged_all_the_same(caplog):
    """A peer may name any of 65,536."""
    connections = []

    def handler(request):
        connections.append(request.connection)
        request.payload.release()
        request.reply()

    def authorise(peer, kind):
        return f"nobody may {kind}" if kind % 2 else None

    async with trio.open_nursery() as nursery:

        async def run(task_status):
            await serve(
                URL, handler, identity=Identity("c", 1, 1), authorise=authorise, task_status=task_status
            )

        await nursery.start(run)
        client = await connect(URL, nursery=nursery, identity=Identity())
        for kind in (*range(1, 2_000), *range(1, 2_000)):
            if kind % 2:
                with pytest.raises(NotAuthorisedError, match=f"nobody may {kind}$"):
                    await client.request(kind, timeout=60)
            else:
                (await client.request(kind, timeout=60)).release()
        (served,) = set(connections)
        assert len(served._verdicts) <= 256 and len(served._refused) <= 256
        nursery.cancel_scope.cancel()
    assert len([each for each in caplog.records if "not authorised" in each.message]) <= 256


def test_errors_of_authorisation_are_remote_errors():
    assert issubclass(NotAuthorisedError, RemoteError)


@pytest.mark.parametrize(
    ("node_id", "name", "principal"), [(3, "", "node/3"), (-1, "", "client"), (-1, "etl", "client/etl")]
)
def test_principals(node_id, name, principal):
    assert PeerIdentity("c", node_id, 1, "data", "mtls", name).principal == principal
