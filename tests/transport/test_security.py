"""Secrets, and where peers need none."""

from __future__ import annotations

import functools

import pytest
import trio
import trio.testing

from insync.transport import (
    URL,
    AuthError,
    EndOfLink,
    Identity,
    InsecureAddressError,
    LinkBroken,
    SecretError,
    Security,
    connect,
    registry,
    serve,
)
from insync.transport._memory import MemoryTransport
from insync.transport.connections._handshake import introduce, judge_acceptor, make_hello
from insync.transport.frames import FrameType, Limits, Status, encode_header, encode_hello
from insync.transport.security import is_proof, proof

SECRET = b"0123456789abcdef"
OURS = Security(secret=SECRET)
ALICE = URL.parse("mem://security/alice")


def ignore(request):
    request.payload.release()
    request.reply(b"reached")


async def listen(nursery, url="mem://security/alice", security=OURS, **settings):
    start = functools.partial(serve, url, ignore, identity=Identity("c", 1, 1), security=security, **settings)
    return (await nursery.start(start)).endpoints[0]


def test_a_secret_comes_from_a_file_or_the_environment(tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(SECRET + b"\n")
    assert Security.load(secret_file=path, environment={}).secret == SECRET
    assert Security.load(environment={"INSYNC_SECRET_FILE": str(path)}).secret == SECRET
    assert Security.load(environment={"INSYNC_SECRET": SECRET.decode()}).secret == SECRET
    assert Security.load(environment={}) == Security()
    other = Security.load(secret_file=path, environment={"INSYNC_SECRET": "another secret that is long"})
    assert other.secret == SECRET
    given = "a secret that a program has made"
    environment = {"INSYNC_SECRET": "another secret that is long"}
    assert Security.load(secret=given, secret_file=path, environment=environment).secret == given.encode()


def test_a_bad_secret_is_refused_by_name(tmp_path):
    with pytest.raises(SecretError, match=f"{tmp_path}/none cannot be read: No such file"):
        Security.load(secret_file=tmp_path / "none")
    (tmp_path / "empty").touch()
    for short in (b"", b"123456789012345"):
        with pytest.raises(SecretError, match=r"fewer than 16.*openssl rand"):
            Security(secret=short)
    with pytest.raises(SecretError):
        Security.load(secret_file=tmp_path / "empty")
    with pytest.raises(SecretError):
        Security.load(secret="", environment={"INSYNC_SECRET": SECRET.decode()})


OLD, NEW = b"the secret that was", b"the secret that comes"


@pytest.mark.parametrize(
    ("dialer", "acceptor", "is_let_in"),
    [
        (OLD, OLD + b"\n" + NEW, True),
        (NEW, OLD + b"\n" + NEW, True),
        (OLD + b"\n" + NEW, OLD, True),
        (NEW + b"\n" + OLD, OLD + b"\n" + NEW, True),
        (OLD + b"\n" + NEW, NEW + b"\n" + OLD, True),
        (NEW + b"\n" + OLD, OLD, False),
        (OLD, NEW, False),
        (SECRET, OLD + b"\n" + NEW, False),
    ],
)
@pytest.mark.parametrize("kind", ["secret", "node_secret"])
async def test_of_two_secrets_the_first_is_proved_and_either_is_taken(dialer, acceptor, is_let_in, kind):
    def holds(value):
        return Security(
            **({"secret": b"one for the clients"} if kind == "node_secret" else {}), **{kind: value}
        )

    async with trio.open_nursery() as nursery:
        url = await listen(nursery, security=holds(acceptor))
        come = functools.partial(
            connect, url, identity=Identity("c", 2, 1), nursery=nursery, security=holds(dialer)
        )
        if is_let_in:
            (await (await come()).request(1, timeout=5)).release()
        else:
            with pytest.raises(AuthError, match=r"secrets differ"):
                await come()
        nursery.cancel_scope.cancel()


def test_raw_bytes_are_one_secret_whatever_they_hold():
    raw = b"\x00\x0a\xff\x0d" * 8
    assert Security(secret=raw).secrets == (raw,)


def test_a_file_has_one_secret_or_two(tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(b"\n " + OLD + b" \r\n\n" + NEW + b"\n")
    both = Security.load(secret_file=path, node_secret_file=None, environment={})
    assert both.secrets == (OLD, NEW)
    assert (Security().secrets, Security().node_secrets) == ((), ())
    with pytest.raises(SecretError, match="has 3 lines: give one secret, or two"):
        Security(secret=b"\n".join((OLD, NEW, SECRET)))
    with pytest.raises(SecretError, match=r"has 5 bytes, fewer than 16"):
        Security(node_secret=OLD + b"\nshort")
    with pytest.raises(SecretError, match="the nodes' secret is the clients' secret"):
        Security(secret=OLD, node_secret=NEW + b"\n" + OLD)


def test_a_secret_is_not_shown():
    assert SECRET.decode() not in repr(OURS) + str(OURS)


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("tcp://127.0.0.1:1", True),
        ("tcp://127.9.9.9:1", True),
        ("tcp://[::1]:1", True),
        ("tcp://localhost:1", True),
        ("tcp://LOCALHOST:1", True),
        ("tcp://0.0.0.0:1", False),
        ("tcp://*:1", False),
        ("tcp://[::]:1", False),
        ("tcp://10.0.0.1:1", False),
        ("tcp://localhost.example.org:1", False),
        ("mem://net/name", True),
    ],
)
def test_addresses_of_this_machine(url, local):
    transport = registry.get(url.partition(":")[0])
    endpoint = transport.parse(URL.parse(url))
    assert transport.is_local(endpoint) is local
    OURS.check_address(transport, endpoint)
    Security(allow_insecure=True).check_address(transport, endpoint)
    if local:
        Security().check_address(transport, endpoint)
    else:
        with pytest.raises(InsecureAddressError, match=r"secret_file.*tls://.*allow_insecure"):
            Security().check_address(transport, endpoint)


async def test_serving_and_dialling_strangers_needs_a_decision():
    for security in (None, Security()):
        with pytest.raises(InsecureAddressError):
            await serve("tcp://0.0.0.0:0", ignore, identity=Identity("c", 1, 1), security=security)
        async with trio.open_nursery() as nursery:
            with pytest.raises(InsecureAddressError):
                await connect("tcp://192.0.2.1:1", identity=Identity(), nursery=nursery, security=security)
    async with trio.open_nursery() as nursery:
        url = await listen(nursery, "tcp://0.0.0.0:0?contact=127.0.0.1")
        connection = await connect(url, identity=Identity(), nursery=nursery, security=OURS)
        assert connection.peer.method == "token"
        nursery.cancel_scope.cancel()


def test_a_proof_is_for_one_role_and_one_pair_of_hellos():
    good = proof(SECRET, b"dialer", b"a", b"b")
    assert is_proof(good, proof(SECRET, b"dialer", b"a", b"b"))
    for other in (
        proof(SECRET, b"acceptor", b"a", b"b"),
        proof(SECRET, b"dialer", b"b", b"a"),
        proof(SECRET + b"!", b"dialer", b"a", b"b"),
        b"",
        good[:-1],
    ):
        assert not is_proof(good, other)


class Recorder:
    """A link that remembers what was sent over it."""

    def __init__(self, link):
        self._link, self.sent = link, []

    def __getattr__(self, name):
        return getattr(self._link, name)

    async def send(self, head, parts, **options):
        self.sent.append(bytes(head))
        await self._link.send(head, parts, **options)


async def test_a_recorded_handshake_is_worth_nothing(caplog):
    transport = MemoryTransport()
    async with trio.open_nursery() as nursery:
        accepted = []
        await listen(nursery, on_connect=accepted.append)
        recorder = Recorder(await transport.connect(ALICE))
        mine = make_hello(Identity("c", 2, 1), "data", Limits(), proves=True)
        await introduce(recorder, mine, judge_acceptor, dialer=True, secrets=[SECRET])
        with trio.fail_after(30):
            while not accepted:  # noqa: ASYNC110
                await trio.sleep(0.001)
        again = await transport.connect(ALICE)
        for message in recorder.sent:
            await again.send(message, ())
        await again.recv_hello()
        answer = (await again.recv_many())[0]
        assert (answer.header.type, answer.header.aux) == (FrameType.ERROR, Status.AUTHENTICATION_FAILED)
        again.abort()
        recorder.abort()
        assert len(accepted) == 1
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert "secrets differ" in caplog.text and SECRET.decode() not in caplog.text


async def test_our_own_proof_sent_back_is_refused():
    """Who knows no secret may repeat what we send: the role in the proof tells it from an answer."""
    transport = MemoryTransport()
    listener = await transport.listen(ALICE)

    async def mirror():
        link = await listener.accept()
        hello = await link.recv_hello()
        await link.send(hello, ())
        proof_of_dialer = (await link.recv_many())[0]
        await link.send(encode_header(FrameType.REPLY, 0, body=proof_of_dialer.body), ())
        await link.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(mirror)
        with pytest.raises(AuthError):
            await connect(str(ALICE), identity=Identity(), nursery=nursery, security=OURS)
    await listener.aclose()


async def test_a_stranger_is_told_and_given_nothing():
    """Large frames and requests instead of a proof: hung up on, nothing is dispatched."""
    transport = MemoryTransport()
    async with trio.open_nursery() as nursery:
        accepted = []
        await listen(nursery, on_connect=accepted.append)
        request = encode_header(FrameType.REQUEST, 1, kind=1)
        for first, payload in ((request, b""), (encode_header(FrameType.REPLY, 0, payload_length=1), b"x")):
            link = await transport.connect(ALICE)
            await link.send(encode_hello(make_hello(Identity(), "", Limits(), proves=True)), ())
            await link.send(first, [payload] if payload else ())
            await link.recv_hello()
            with pytest.raises((LinkBroken, EndOfLink)), trio.fail_after(30):
                await link.recv_many()
            link.abort()
        assert not accepted
        nursery.cancel_scope.cancel()
