"""tls://: the kit, and who is believed."""

from __future__ import annotations

import functools
import socket
import ssl
from pathlib import Path

import pytest
import trio
import trio.testing

from insync.plugins.tcp import TlsTransport
from insync.transport import (
    URL,
    AuthError,
    ConnectError,
    Identity,
    SecretError,
    Security,
    TlsFiles,
    connect,
    register,
    serve,
    split_host_port,
)
from insync.transport.testing import Env, cases_for, run_case, skipped_for

from ..handshakes import first_flight, noting
from ..kafka.steps import Steps
from .certificates import DAY, Authority

NODE = Identity("kit", 1, 1)


class TlsEnv(Env):
    def __init__(self, folder=None):
        self._authority = Authority(folder) if folder else None
        self._made = {}
        self.transport = TlsTransport(self.files_for(Identity()) if folder else None)

    def files_for(self, identity):
        key = identity.cluster_id, identity.node_id
        if key not in self._made:
            self._made[key] = self._authority.files_for(identity)
        return self._made[key]

    async def open_raw(self, url):
        host, port = split_host_port(URL.parse(url))
        return socket.create_connection((host, port))

    def security_for(self, identity):
        return Security(tls=self.files_for(identity))

    def listen_url(self):
        return "tls://127.0.0.1:0"

    def dead_url(self):
        return "tls://127.0.0.1:1"

    def malformed_urls(self):
        return ["tls://", "tls://localhost", "tls://:9000", "tls://localhost:9000/path", "tls://::1:9000"]


@pytest.fixture(scope="module")
def env(tmp_path_factory):
    return TlsEnv(tmp_path_factory.mktemp("certificates"))


def test_what_is_left_out():
    assert {case.name for case in skipped_for(TlsEnv())} == {
        "E_half_a_close_leaves_the_other_half",
        "I_the_same_seed_gives_the_same_trace",
        "I_what_is_cut_off_stays_cut_off_and_a_new_link_is_whole",
    }


@pytest.mark.slow
@pytest.mark.parametrize("case", cases_for(TlsEnv()), ids=lambda case: case.name)
async def test_tls(case, env):
    await run_case(case, env)


def answer(request):
    request.payload.release()
    request.reply(b"reached")


async def listen(nursery, security, accepted=None):
    register("tls", TlsTransport, override=True)
    on_connect = None if accepted is None else accepted.append
    start = functools.partial(
        serve, "tls://127.0.0.1:0", answer, identity=NODE, security=security, on_connect=on_connect
    )
    return (await nursery.start(start)).endpoints[0]


async def test_both_ends_are_known_by_their_certificates(env):
    async with trio.open_nursery() as nursery:
        accepted = []
        url = await listen(nursery, env.security_for(NODE), accepted)
        me = Identity("kit", 7, 3)
        connection = await connect(url, identity=me, nursery=nursery, security=env.security_for(me))
        (await connection.request(1, timeout=5)).release()
        assert connection.peer.method == "mtls" and connection.peer.node_id == 1
        assert accepted[0].peer.method == "mtls" and accepted[0].peer.node_id == 7
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("identity", "uri", "words"),
    [
        (Identity("kit", 7, 1), "isr://kit/8", "isr://kit/8, not for isr://kit/7"),
        (Identity("kit", 7, 1), "isr://kit/client", "not for isr://kit/7"),
        (Identity(), "isr://kit/7", "not for isr://kit/client"),
        (Identity("kit", 7, 1), "isr://other/7", "isr://other/7, not for"),
        (Identity(), "isr://other/client", "isr://other/client, not for isr://kit/client"),
        (Identity("kit", 7, 1), "https://kit/7", "nobody"),
    ],
)
async def test_a_certificate_speaks_for_one(tmp_path, identity, uri, words):
    authority = Authority(tmp_path)
    async with trio.open_nursery() as nursery:
        accepted = []
        url = await listen(nursery, Security(tls=authority.files("isr://kit/1")), accepted)
        with pytest.raises(AuthError, match=words):
            theirs = Security(tls=authority.files(uri))
            await connect(url, identity=identity, nursery=nursery, security=theirs)
        assert not accepted
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("uris", [("isr://kit/7", "isr://kit/8"), ("isr://kit/8", "isr://kit/7")])
async def test_a_certificate_with_two_names_speaks_for_nobody(tmp_path, uris):
    authority = Authority(tmp_path)
    async with trio.open_nursery() as nursery:
        accepted = []
        url = await listen(nursery, Security(tls=authority.files("isr://kit/1")), accepted)
        both = Security(tls=authority.files(*uris))
        for node_id in (7, 8):
            with pytest.raises(AuthError, match="nobody"):
                await connect(url, identity=Identity("kit", node_id, 1), nursery=nursery, security=both)
        assert not accepted
        nursery.cancel_scope.cancel()


async def test_a_client_does_not_pass_for_a_node(tmp_path):
    authority = Authority(tmp_path)
    files = authority.files("isr://kit/client")
    async with trio.open_nursery() as nursery:
        register("tls", TlsTransport, override=True)
        start = functools.partial(
            serve, "tls://127.0.0.1:0", answer, identity=Identity("kit"), security=Security(tls=files)
        )
        url = (await nursery.start(start)).endpoints[0]
        with pytest.raises(AuthError, match="isr://kit/client"):
            await connect(url, identity=Identity(), nursery=nursery, security=Security(tls=files))
        nursery.cancel_scope.cancel()


async def test_certificates_that_nobody_believes(tmp_path, caplog):
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    stranger = theirs.files("isr://kit/2")
    strange_to_us = TlsFiles(stranger.certificate, stranger.key, ours.files("isr://kit/3").authorities)
    expired = ours.files("isr://kit/4", valid=-DAY)
    async with trio.open_nursery() as nursery:
        accepted = []
        url = await listen(nursery, Security(tls=ours.files("isr://kit/1")), accepted)
        for files, node_id in ((stranger, 2), (strange_to_us, 2), (expired, 4)):
            with pytest.raises((AuthError, ConnectError)):
                await connect(
                    url, identity=Identity("kit", node_id, 1), nursery=nursery, security=Security(tls=files)
                )
        assert not accepted
        nursery.cancel_scope.cancel()
    assert "not trusted" in caplog.text


@pytest.mark.parametrize(
    ("latest", "is_served"), [(ssl.TLSVersion.TLSv1_2, False), (ssl.TLSVersion.TLSv1_3, True)]
)
async def test_no_link_is_older_than_tls_1_3(env, latest, is_served):
    files, context = env.files_for(Identity("kit", 7, 1)), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.maximum_version = False, latest
    context.load_cert_chain(files.certificate, files.key)
    context.load_verify_locations(files.authorities)
    async with trio.open_nursery() as nursery:
        host, port = split_host_port(URL.parse(await listen(nursery, env.security_for(NODE))))
        stream = trio.SSLStream(await trio.open_tcp_stream(host, port), context)
        with trio.fail_after(30):
            try:
                await stream.do_handshake()
            except trio.BrokenResourceError:
                assert not is_served
            else:
                assert is_served
        nursery.cancel_scope.cancel()


async def test_renewed_certificates_are_for_the_next_link(tmp_path):
    authority = Authority(tmp_path)
    files = authority.files("isr://kit/1", valid=-DAY)
    mine = Security(tls=authority.files("isr://kit/client"))
    async with trio.open_nursery() as nursery:
        url = await listen(nursery, Security(tls=files))
        with pytest.raises(AuthError, match=r"EXPIRED|CERTIFICATE"):
            await connect(url, identity=Identity(), nursery=nursery, security=mine)
        authority.files("isr://kit/1")
        connection = await connect(url, identity=Identity(), nursery=nursery, security=mine)
        Path(files.certificate).write_text("-----BEGIN CERT")  # noqa: ASYNC240 - as if half written
        again = await connect(url, identity=Identity(), nursery=nursery, security=mine)
        for one in (connection, again):
            (await one.request(1, timeout=5)).release()
        nursery.cancel_scope.cancel()


async def test_plain_text_at_the_door_harms_nobody(env):
    async with trio.open_nursery() as nursery:
        url = await listen(nursery, env.security_for(NODE))
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        for data in (b"GET / HTTP/1.1\r\n\r\n", b"\x89ISR\r\n\x1a\n" + bytes(40), b"\x16\x03\x01\x00"):
            with socket.create_connection(address) as stranger:
                stranger.sendall(data)
        connection = await connect(
            url, identity=Identity(), nursery=nursery, security=env.security_for(Identity())
        )
        (await connection.request(1, timeout=5)).release()
        nursery.cancel_scope.cancel()


async def test_missing_files_are_named(tmp_path):
    register("tls", TlsTransport, override=True)
    with pytest.raises(SecretError, match="INSYNC_TLS_CERTIFICATE"):
        await serve("tls://127.0.0.1:0", answer, identity=NODE)
    none = TlsFiles(*(str(tmp_path / name) for name in "abc"))
    with pytest.raises(SecretError, match="No such file"):
        await serve("tls://127.0.0.1:0", answer, identity=NODE, security=Security(tls=none))


def test_the_environment_names_the_files():
    names = ("INSYNC_TLS_CERTIFICATE", "INSYNC_TLS_KEY", "INSYNC_TLS_AUTHORITIES")
    full = dict(zip(names, "abc", strict=True))
    assert Security.load(environment=full).tls == TlsFiles("a", "b", "c")
    with pytest.raises(SecretError, match="set INSYNC_TLS_KEY too"):
        Security.load(environment={name: "x" for name in names if name != "INSYNC_TLS_KEY"})


async def test_a_client_may_have_a_name(tmp_path):
    authority = Authority(tmp_path)
    async with trio.open_nursery() as nursery:
        accepted = []
        url = await listen(nursery, Security(tls=authority.files("isr://kit/1")), accepted)
        theirs = Security(tls=authority.files("isr://kit/client/etl"))
        connection = await connect(url, identity=Identity(), nursery=nursery, security=theirs)
        (await connection.request(1, timeout=5)).release()
        assert accepted[0].peer.principal == "client/etl"
        with pytest.raises(AuthError, match="not for isr://kit/7"):
            await connect(url, identity=Identity("kit", 7, 1), nursery=nursery, security=theirs)
        nursery.cancel_scope.cancel()


async def test_of_many_handshakes_one_goes_on_in_each_step_of_the_loop(env, monkeypatch):
    """Each takes milliseconds: open connections would wait for all of those that come together."""
    steps = Steps()
    taken: dict[ssl.SSLObject, int] = {}

    hello, sockets = first_flight(), []
    monkeypatch.setattr(ssl.SSLContext, "sslobject_class", noting(steps, taken))
    trio.lowlevel.add_instrument(steps)
    try:
        async with trio.open_nursery() as nursery:
            host, port = split_host_port(URL.parse(await listen(nursery, env.security_for(NODE))))
            for _ in range(20):
                sockets.append(socket.create_connection((host, port)))
            with trio.fail_after(30):
                while len(taken) < len(sockets):
                    await trio.lowlevel.checkpoint()
                await trio.testing.wait_all_tasks_blocked()
                taken.clear()
                for each in sockets:
                    each.sendall(hello)
                while len(taken) < len(sockets):
                    await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    finally:
        trio.lowlevel.remove_instrument(steps)
        for each in sockets:
            each.close()
    assert len(set(taken.values())) == len(sockets)


async def test_what_comes_after_the_handshake_waits_for_no_turn(env):
    """Who has a turn and is paused must not keep those from reading who are in."""
    async with trio.open_nursery() as nursery:
        accepted = []
        url = await listen(nursery, env.security_for(NODE), accepted)
        me = Identity("kit", 7, 3)
        connection = await connect(url, identity=me, nursery=nursery, security=env.security_for(me))
        (await connection.request(1, timeout=5)).release()
        assert accepted[0]._inner._stream._below.turns is None
        nursery.cancel_scope.cancel()
