"""SASL without sockets: the vectors of the RFCs, what is refused, and that nothing else comes out of any bytes."""

from __future__ import annotations

import base64
import contextlib
import gc
import hashlib
import hmac
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from insync.plugins.kafka.core.sasl import LoginError, ScramLogin, plain
from insync.plugins.kafka.login import FAILURE_DELAY, OF_A_NAME, OF_AN_ADDRESS, Attempts, Login
from insync.replication.core import scram
from insync.transport import PeerIdentity

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
KEPT = scram.derive("SCRAM-SHA-256", "pencil", SALT, 4096)
PEER = PeerIdentity(cluster_id="c", node_id=-1, incarnation=0, lane="kafka")
NONCE = "rOprNGfwEbeRWgbNEkqO"
FIRST = f"n,,n=user,r={NONCE}".encode()
OURS = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
FINAL = f"c=biws,r={NONCE}{OURS},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()


def begun(first: bytes = FIRST) -> ScramLogin:
    login = ScramLogin("SCRAM-SHA-256")
    login.first(first)
    login.challenge(KEPT, lambda: OURS)
    return login


def test_the_exchange_of_rfc_7677() -> None:
    login = ScramLogin("SCRAM-SHA-256")
    assert login.first(FIRST) == "user"
    said = login.challenge(KEPT, lambda: OURS)
    assert said == f"r={NONCE}{OURS},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    assert not login.is_over
    assert login.final(FINAL) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert login.is_over


def proof(exchange: str) -> str:
    """Of the password `pencil`, as a client makes it (RFC 5802)."""
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", KEPT.salt, KEPT.iterations)
    key = hmac.digest(salted, b"Client Key", "sha256")
    signature = hmac.digest(hashlib.sha256(key).digest(), exchange.encode(), "sha256")
    return base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()


def test_a_client_may_put_its_nonce_before_ours_once_more() -> None:
    """librdkafka before 2.6.1 does. The proof is of what the client has sent, and holds for nothing else."""
    login = ScramLogin("SCRAM-SHA-256")
    login.first(FIRST)
    challenge = login.challenge(KEPT, lambda: OURS).decode()
    without_proof = f"c=biws,r={NONCE}{NONCE}{OURS}"
    said = f"{without_proof},p={proof(f'n=user,r={NONCE},{challenge},{without_proof}')}"
    assert login.final(said.encode()).startswith(b"v=") and login.is_over
    with pytest.raises(LoginError, match="the name or the password is wrong"):
        begun().final(FINAL.replace(f"r={NONCE}".encode(), f"r={NONCE}{NONCE}".encode()))


def test_names_are_unescaped_and_extensions_are_skipped() -> None:
    assert ScramLogin("SCRAM-SHA-256").first(b"n,,n=a=2Cb=3Dc,r=x,tokenauth=true") == "a,b=c"
    assert ScramLogin("SCRAM-SHA-256").first("y,a=ä,n=ä,r=x".encode()) == "ä"
    assert ScramLogin("SCRAM-SHA-256").first(b"n,a=a=2Cb,n=a=2Cb,r=x") == "a,b", "both are"


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (b"", "malformed"),
        (b"n,,n=user", "malformed"),
        (b"n,,r=x,n=user", "malformed"),
        (b"x,,n=user,r=x", "malformed"),
        (b"n,,m=ext,n=user,r=x", "malformed"),
        (b"p=tls-unique,,n=user,r=x", "channel binding is not offered"),
        (b"n,a=root,n=user,r=x", "acting for another user is not supported"),
        (b"n,,n=,r=x", "the name in the first"),
        (b"n,,n=a=b,r=x", "the name in the first"),
        (b"n,,n=" + b"x" * 1025 + b",r=x", "the name in the first"),
        (b"n,,n=user,r=", "nonce"),
        (b"n,,n=user,r=" + b"x" * 257, "nonce"),
        ("n,,n=user,r=ä".encode(), "nonce"),
        (b"n,,n=\xff,r=x", "not UTF-8"),
    ],
)
def test_a_first_message_that_is_none(first: bytes, said: str) -> None:
    with pytest.raises(LoginError, match=said):
        ScramLogin("SCRAM-SHA-256").first(first)


@pytest.mark.parametrize(
    ("final", "said"),
    [
        (b"", "malformed"),
        (FINAL.replace(b",p=", b",q="), "malformed"),
        (FINAL.replace(b"c=biws", b"c=eSws"), "another exchange"),
        (FINAL.replace(b"c=biws", b"c=!"), "malformed"),
        (FINAL.replace(b"r=rOpr", b"r=rOps"), "another exchange"),
        (f"c=biws,r={NONCE},p=dHzb".encode(), "another exchange"),
        (f"c=biws,r={OURS},p=dHzb".encode(), "another exchange"),
        (f"c=biws,r={NONCE * 3}{OURS},p=dHzb".encode(), "another exchange"),
        (FINAL.replace(b"p=dH", b"p=eH"), "the name or the password is wrong"),
        (FINAL.replace(b",p=", b",x=1,p="), "the name or the password is wrong"),
        (FINAL[:-8], "malformed|wrong"),
        (b"p=", "malformed"),
    ],
)
def test_a_final_message_that_proves_nothing(final: bytes, said: str) -> None:
    login = begun()
    with pytest.raises(LoginError, match=said):
        login.final(final)
    assert not login.is_over


def test_a_proof_holds_for_its_own_exchange_alone() -> None:
    login = begun(FIRST.replace(b"n,,n=user,", b"n,,n=root,"))
    with pytest.raises(LoginError, match="wrong"):
        login.final(FINAL)


@pytest.mark.parametrize(
    ("token", "found"),
    [(b"\0etl\0secret", ("etl", "secret")), ("etl\0etl\0gehäim".encode(), ("etl", "gehäim"))],
)
def test_a_plain_token(token: bytes, found: tuple[str, str]) -> None:
    assert plain(token) == found


@pytest.mark.parametrize(
    ("token", "said"),
    [
        (b"", "three parts"),
        (b"etl\0secret", "three parts"),
        (b"\0etl\0a\0b", "three parts"),
        (b"\0\0secret", "without a name"),
        (b"\0etl\0", "without a name or a password"),
        (b"root\0etl\0secret", "acting for another user is not supported"),
        (b"\0etl\0\xff", "not UTF-8"),
    ],
)
def test_a_plain_token_that_is_none(token: bytes, said: str) -> None:
    with pytest.raises(LoginError, match=said):
        plain(token)


@given(st.one_of(st.binary(max_size=80), st.text(alphabet="npyacr=,xs0=2C\0", max_size=40).map(str.encode)))
def test_any_bytes_are_a_token_or_refused(token: bytes) -> None:
    for read in (plain, ScramLogin("SCRAM-SHA-512").first, begun().final):
        try:
            read(token)
        except LoginError:
            continue


def test_nothing_that_is_told_has_the_password_in_it() -> None:
    for token in (b"root\0etl\0hunter2", b"\0etl\0hunter2\0"):
        with pytest.raises(LoginError) as refused:
            plain(token)
        assert "hunter2" not in str(refused.value)


async def test_a_token_that_is_too_long_is_not_looked_at() -> None:
    login = Login(("PLAIN",), Attempts())
    assert login.choose("PLAIN", bare=False) == 0
    with pytest.raises(LoginError, match="a SASL token of 20000 bytes; at most 16384 are accepted"):
        await login.take(None, bytes(20_000))  # type: ignore[arg-type]  # nobody is asked
    assert not login.is_over


class Clients:
    """Clients that try to log in by PLAIN, and the names of which the node checks a password."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.attempts = Attempts()
        self.verdict: bool | None = None
        """None: a check does not end."""

    async def verify_user(self, name: str, password: str) -> bool:
        self.asked.append(name)
        if self.verdict is None:
            await trio.sleep_forever()
        return bool(self.verdict)

    async def come(self, address: str, name: str) -> None:
        login = Login(("PLAIN",), self.attempts)
        login.choose("PLAIN", bare=False)
        client = SimpleNamespace(host=f"{address}:1", service=self, peer=PEER)
        with contextlib.suppress(LoginError):
            await login.take(cast(Any, client), f"\0{name}\0guess".encode())


async def test_a_flood_of_logins_from_one_address_keeps_out_nobody_from_another() -> None:
    clients = Clients()
    async with trio.open_nursery() as nursery:
        for number in range(3 * OF_AN_ADDRESS):
            nursery.start_soon(clients.come, "127.0.0.1", f"stranger-{number}")
        await trio.testing.wait_all_tasks_blocked()
        assert len(clients.asked) == OF_AN_ADDRESS
        nursery.start_soon(clients.come, "127.0.0.2", "etl")
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert clients.asked[OF_AN_ADDRESS:] == ["etl"]
    gc.collect()
    assert not clients.attempts._places, "addresses are forgotten"


async def test_a_flood_of_logins_for_one_name_keeps_out_no_other_name_of_the_address() -> None:
    clients = Clients()
    async with trio.open_nursery() as nursery:
        for _ in range(3 * OF_AN_ADDRESS):
            nursery.start_soon(clients.come, "127.0.0.1", "victim")
        await trio.testing.wait_all_tasks_blocked()
        for address, name in (("127.0.0.1", "etl"), ("127.0.0.2", "victim")):
            nursery.start_soon(clients.come, address, name)
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert clients.asked == ["victim"] * OF_A_NAME + ["etl", "victim"]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_passwords_of_a_name_are_tried_no_faster_than_failures_are_told(
    autojump_clock: trio.testing.MockClock, mechanism: str
) -> None:
    """A guesser need not wait for the answer: the place of a failed attempt is taken until it is told."""
    clients, tries = Clients(), 5 * OF_A_NAME
    clients.verdict = False

    async def credential(name: str, mechanism: str) -> Any:
        return KEPT

    async def come() -> None:
        login = Login((mechanism,), clients.attempts)
        login.choose(mechanism, bare=False)
        client = cast(
            Any,
            SimpleNamespace(
                host="127.0.0.1:1",
                peer=PEER,
                service=SimpleNamespace(credential=credential, verify_user=clients.verify_user),
            ),
        )
        if mechanism == "PLAIN":
            token = b"\0victim\0guess"
        else:
            said = await login.take(client, FIRST)
            nonce = said.split(b",")[0]
            token = b"c=biws," + nonce + b",p=" + base64.b64encode(bytes(32))
        with pytest.raises(LoginError):
            await login.take(client, token)

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(tries):
            nursery.start_soon(come)
    assert trio.current_time() - began == pytest.approx(tries / OF_A_NAME * FAILURE_DELAY)


async def test_logins_that_are_cancelled_leave_their_places_to_others_of_the_address() -> None:
    clients = Clients()

    async def leave(name: str, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        with trio.CancelScope() as scope:
            task_status.started(scope)
            await clients.come("127.0.0.1", name)

    async with trio.open_nursery() as nursery:
        scopes = [await nursery.start(leave, f"stranger-{number}") for number in range(OF_AN_ADDRESS)]
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(clients.come, "127.0.0.1", "etl")
        await trio.testing.wait_all_tasks_blocked()
        assert len(clients.asked) == OF_AN_ADDRESS
        for scope in scopes:
            scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert clients.asked[OF_AN_ADDRESS:] == ["etl"]
        nursery.cancel_scope.cancel()
