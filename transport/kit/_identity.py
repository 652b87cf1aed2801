"""Kit, group H: who is at the other end."""

from __future__ import annotations

import attrs
import trio

from ..connections._handshake import introduce, make_hello
from ..connections.connection import Connection
from ..errors import AuthError, ConnectError, WrongPeerError
from ..frames import Limits
from ..patience import PATIENCE
from ..requests import Identity
from ..security import Security
from ..urls import URL
from ._frame import Env, case, dial, echo, listening, served


@case("H")
async def strangers_are_refused(env: Env) -> None:
    """Another cluster, another node: WrongPeerError with names; an unknown cluster id is accepted."""
    async with served(env, echo) as (nursery, url):
        for identity, expected, words in (
            (Identity("other", 2, 1), 1, ("'other'", "'kit'")),
            (Identity("kit", 2, 1), 9, ("node 9", "node 1")),
        ):
            try:
                await dial(env, url, nursery, identity, expect_node=expected)
            except WrongPeerError as error:
                assert all(word in str(error) for word in words), error
                assert not error.retryable and error.delivery == "never"
            else:
                raise AssertionError("a stranger was accepted")
        connection = await dial(env, url, nursery, expect_node=1, lane="control")
        peer = connection.peer
        assert (peer.cluster_id, peer.node_id, peer.incarnation, peer.lane) == ("kit", 1, 1, "control")


@case("H")
async def both_sides_judge(env: Env) -> None:
    """A dialer that would accept anybody is refused by the acceptor, with the same error."""
    async with served(env, echo) as (_, url):
        for identity, expected in ((Identity("other"), None), (Identity("kit"), 9)):
            link = await env.transport.connect(env.transport.parse(URL.parse(url)))
            try:
                await introduce(
                    link, make_hello(identity, "", Limits(), expected), lambda mine, theirs: None, dialer=True
                )
            except WrongPeerError:
                link.abort()
            else:
                raise AssertionError("the acceptor did not judge")


@case("H")
async def the_newest_incarnation_wins(env: Env) -> None:
    """It ends older connections of its lane; an older one is refused."""
    accepted: list[Connection] = []
    async with served(env, echo, on_connect=accepted.append) as (nursery, url):

        async def join(incarnation: int, lane: str) -> Connection:
            return await dial(env, url, nursery, Identity("kit", 5, incarnation), lane=lane)

        old_data, old_control = await join(1, "data"), await join(1, "control")
        again = await join(1, "data")
        with await old_data.request(1, b"both live", timeout=5 * PATIENCE) as response:
            assert response.body == b"both live"
        await join(2, "data")
        for connection in (old_data, again):
            with trio.fail_after(2 * PATIENCE):
                await connection.closed.wait()
        assert not old_control.closed.is_set()
        try:
            await join(1, "bulk")
        except WrongPeerError as error:
            assert "incarnation" in str(error)
        else:
            raise AssertionError("an older incarnation was accepted")
        assert [connection.peer.incarnation for connection in accepted] == [1, 1, 1, 2]


@case("H")
async def a_secret_is_proved_both_ways(env: Env) -> None:
    """Both know it: verified, by token. Another one, or none on one side: AuthError, and no handler is reached."""
    ours = attrs.evolve(env.security_for(Identity("kit", 1, 1)), secret=b"ours" * 16)
    client = attrs.evolve(env.security_for(Identity()), secret=ours.secret)
    accepted: list[Connection] = []
    async with served(env, echo, security=ours, on_connect=accepted.append) as (nursery, url):
        connection = await dial(env, url, nursery, security=client)
        (await connection.request(1, timeout=5 * PATIENCE)).release()
        assert connection.peer.method == accepted.pop().peer.method == "token" and connection.peer.verified
        await _expect_unproved(env, url, nursery, attrs.evolve(client, secret=b"else" * 16))
        await _expect_unproved(env, url, nursery, attrs.evolve(client, secret=None))
    async with served(env, echo, on_connect=accepted.append) as (nursery, url):
        await _expect_unproved(env, url, nursery, client)
    assert not accepted


async def _expect_unproved(env: Env, url: str, nursery: trio.Nursery, security: Security) -> None:
    try:
        await dial(env, url, nursery, security=security)
    except AuthError as error:
        assert "secret" in str(error) and "oursours" not in str(error), error
    else:
        raise AssertionError("a peer that proved nothing was accepted")


@case("H")
async def nobody_to_shake_hands_with(env: Env) -> None:
    """Connecting to a listener that never answers ends in time, with ConnectError."""
    async with listening(env) as listener, trio.open_nursery() as nursery:
        with trio.fail_after(2 * PATIENCE):
            try:
                await dial(env, str(listener.endpoints[0]), nursery, timeout=0.1)
            except ConnectError as error:
                assert str(listener.endpoints[0]) in str(error)
            else:
                raise AssertionError("connected to nobody")
        with trio.move_on_after(0.1):
            # Not all transports hand out a link whose dialer has left.
            (await listener.accept()).abort()
