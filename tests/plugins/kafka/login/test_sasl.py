"""Logins at a real node: unmodified clients, and clients that break the exchange."""

from __future__ import annotations

import asyncio
import shutil
import struct
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.errors
import kafka
import kafka.errors
import pytest
import trio

from insync.plugins.kafka import listener
from insync.plugins.kafka.protocol import message
from insync.plugins.kafka.protocol.apis import Api, KafkaError
from insync.replication import Admin, BlockingAdmin, Node
from insync.replication.core.errors import ErrorCode
from insync.replication.node import BlockingNode, NodeError
from insync.replication.node.requests import _users

from ....interop.kafka import Java
from ....requires import missing
from ..programs.test_python_clients import PATIENCE
from ..programs.test_python_clients import librdkafka as librdkafka
from ..recorded import check, recording
from ..test_listener import client_of, node_at
from ..wire_client import WireClient
from .test_tls import Authority, node_with

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
ALL = "sasl=" + ",".join(MECHANISMS)
NAME, PASSWORD = "etl", "correct horse, battery=staple ä"
Handshake, Authenticate = message("SaslHandshakeRequest"), message("SaslAuthenticateRequest")
Metadata, ApiVersions = message("MetadataRequest"), message("ApiVersionsRequest")


# Unmodified clients


@contextmanager
def secured(folder: Path, *, tls: bool = False, **more: Any) -> Iterator[tuple[BlockingNode, dict[str, Any]]]:
    """A node whose Kafka listener asks for a login, and the settings of librdkafka for it."""
    url, given = f"kafka://127.0.0.1:0?{ALL}", {"security.protocol": "SASL_PLAINTEXT"}
    if tls:
        authority = Authority(folder, "authority")
        certificate, key = authority.issue("node")
        url = f"kafka+tls://127.0.0.1:0?{ALL}&certificate={certificate}&key={key}"
        given = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(authority.path)}
    with node_with(folder, url, **more) as node:
        given["bootstrap.servers"] = node.gateway_endpoints[0].partition("://")[2]
        with BlockingAdmin(node.endpoints) as admin:
            admin.create_user(NAME, PASSWORD)
        yield node, given


def as_user(
    given: dict[str, Any], mechanism: str, name: str = NAME, password: str = PASSWORD
) -> dict[str, Any]:
    return {
        **given,
        "sasl.mechanism": mechanism,
        "sasl.username": name,
        "sasl.password": password,
        "socket.timeout.ms": 10_000,
    }


def write(librdkafka: Any, given: dict[str, Any], topic: str) -> Any:
    told: list[Any] = []
    producer = librdkafka.Producer({**given, "message.timeout.ms": 10_000})
    producer.produce(topic, b"x", on_delivery=lambda error, sent: told.append(error or sent))
    producer.flush(PATIENCE)
    return told[0]


@pytest.mark.interop
@pytest.mark.xdist_group("kafka")
@pytest.mark.parametrize("tls", [False, True])
def test_librdkafka_by_every_mechanism(librdkafka: Any, tmp_path: Path, tls: bool) -> None:
    with secured(tmp_path, tls=tls) as (_, given):
        for number, mechanism in enumerate(MECHANISMS):
            user = as_user(given, mechanism)
            assert write(librdkafka, user, "t").offset() == number
        consumer = librdkafka.Consumer({**as_user(given, "PLAIN"), "group.id": "g"})
        consumer.assign([librdkafka.TopicPartition("t", 0, 0)])
        assert len(consumer.consume(3, PATIENCE)) == 3
        consumer.close()


@pytest.mark.interop
@pytest.mark.xdist_group("kafka")
def test_kcat_by_every_mechanism(tmp_path: Path) -> None:
    """Debian's has librdkafka 2.0.2, which puts its nonce before the node's once more."""
    kcat = shutil.which("kcat") or shutil.which("kafkacat")
    if kcat is None:
        missing("no kcat on the path (Debian's package kcat)")
    with secured(tmp_path) as (_, given):
        for mechanism in MECHANISMS:
            settings = [f"-X{name}={value}" for name, value in as_user(given, mechanism).items()]
            done = subprocess.run([kcat, "-L", *settings], capture_output=True, text=True, timeout=60)
            assert done.returncode == 0 and "1 brokers" in done.stdout, done.stderr


@pytest.mark.interop
@pytest.mark.xdist_group("kafka")
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_and_an_unknown_name_are_told_the_same(
    librdkafka: Any, tmp_path: Path, mechanism: str
) -> None:
    with secured(tmp_path) as (_, given):
        told = []
        for name, password in ((NAME, "wrong"), ("nobody", PASSWORD)):
            errors: list[Any] = []
            user = {**as_user(given, mechanism, name, password), "error_cb": errors.append}
            producer, deadline = librdkafka.Producer(user), time.monotonic() + PATIENCE
            while not errors and time.monotonic() < deadline:
                producer.poll(0.1)
            assert errors[0].code() == librdkafka.KafkaError._AUTHENTICATION
            told.append(errors[0].str().split("authentication failed:")[1].partition("(after")[0])
        assert told[0] == told[1] and "the name or the password is wrong" in told[0]


@pytest.mark.interop
@pytest.mark.xdist_group("kafka")
def test_what_a_user_may_do(librdkafka: Any, tmp_path: Path) -> None:
    with secured(tmp_path) as (node, given), BlockingAdmin(node.endpoints) as admin:
        user = as_user(given, "SCRAM-SHA-512")
        assert write(librdkafka, user, "t").offset() == 0
        admin.alter_user(NAME, allow=["consume"])
        refused = write(librdkafka, user, "t")
        assert refused.code() == librdkafka.KafkaError.TOPIC_AUTHORIZATION_FAILED
        consumer = librdkafka.Consumer({**user, "group.id": "g"})
        consumer.assign([librdkafka.TopicPartition("t", 0, 0)])
        (found,) = consumer.consume(1, PATIENCE)
        assert found.value() == b"x"
        consumer.close()


@pytest.mark.interop
@pytest.mark.xdist_group("kafka")
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_and_aiokafka(tmp_path: Path, mechanism: str) -> None:
    with secured(tmp_path) as (_, given):
        settings = {
            "bootstrap_servers": given["bootstrap.servers"],
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": mechanism,
            "sasl_plain_username": NAME,
            "sasl_plain_password": PASSWORD,
        }
        producer = kafka.KafkaProducer(**settings)
        assert producer.send("t", b"x").get(20).offset == 0
        producer.close()

        async def write_and_fail() -> None:
            async with aiokafka.AIOKafkaProducer(**settings) as writer:
                assert (await writer.send_and_wait("t", b"y")).offset == 1
            wrong = aiokafka.AIOKafkaProducer(**{**settings, "sasl_plain_password": "wrong"})
            with pytest.raises(aiokafka.errors.KafkaError):
                await wrong.start()
            await wrong.stop()

        asyncio.run(write_and_fail())


@pytest.mark.interop
@pytest.mark.xdist_group("kafka")
def test_the_newest_java_client_logs_in_and_keeps_users(clients: Java, tmp_path: Path) -> None:
    """Sasl.java: logs in by each mechanism, is refused, and describes, makes, changes and deletes users.

    Its logins are recorded: each word of both sides is as the RFCs have it.
    """
    program = Path(__file__).parent / "Sasl.java"
    with secured(tmp_path) as (_, given), recording(given["bootstrap.servers"]) as recorder:
        assert clients.run(str(program), recorder.address, NAME, PASSWORD).splitlines()[-1] == "done"
        # It logs in as users that it has created, too.
        logins = [each for each in recorder.logins() if each.is_by(NAME)]
        assert {each.mechanism for each in logins} == set(MECHANISMS)
        for login in logins:
            check(login, NAME, PASSWORD)


# Clients that break the exchange


@asynccontextmanager
async def asking(folder: Path, options: str = f"?{ALL}") -> AsyncIterator[tuple[Node, WireClient]]:
    async with node_at(folder, options) as node, Admin(node.endpoints) as admin:
        await admin.create_user(NAME, PASSWORD)
        async with client_of(node) as client:
            yield node, client


def plain(name: str = NAME, password: str = PASSWORD) -> bytes:
    return f"\0{name}\0{password}".encode()


async def choose(client: WireClient, mechanism: str = "PLAIN", version: int = 1) -> Any:
    return await client.ask(Api.SASL_HANDSHAKE, version, Handshake(mechanism=mechanism))


async def prove(client: WireClient, token: bytes, version: int = 2) -> Any:
    return await client.ask(Api.SASL_AUTHENTICATE, version, Authenticate(auth_bytes=token))


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_a_login_opens_the_connection(tmp_path: Path, version: int) -> None:
    async with asking(tmp_path) as (_, client):
        versions = await client.ask(Api.API_VERSIONS, 0, ApiVersions())
        assert {int(Api.SASL_HANDSHAKE), int(Api.SASL_AUTHENTICATE)} <= {e.api_key for e in versions.api_keys}
        chosen = await choose(client)
        assert (chosen.error_code, chosen.mechanisms) == (0, list(MECHANISMS))
        proved = await prove(client, plain(), version)
        assert (proved.error_code, proved.auth_bytes, proved.session_lifetime_ms) == (0, b"", 0)
        assert (await client.ask(Api.METADATA, 5, Metadata(topics=None))).cluster_id
        # The lifetime of 0 says that nobody need log in again.
        assert (await choose(client)).error_code == KafkaError.ILLEGAL_SASL_STATE
        assert (await prove(client, plain())).error_code == KafkaError.ILLEGAL_SASL_STATE
        assert (await client.ask(Api.METADATA, 5, Metadata(topics=None))).cluster_id


async def test_bare_tokens_as_older_clients_send_them(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, client):
        assert (await choose(client, version=0)).error_code == 0
        token = plain()
        await client.stream.send_all(struct.pack(">i", len(token)) + token)
        assert await client.frame() == b""
        assert (await client.ask(Api.METADATA, 5, Metadata(topics=None))).cluster_id
    (tmp_path / "2").mkdir()
    async with asking(tmp_path / "2") as (_, client):
        assert (await choose(client, version=0)).error_code == 0
        await client.stream.send_all(struct.pack(">i", 3) + b"\0a\0")
        assert await client.has_ended()


async def test_a_stranger_may_ask_nothing(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, client):
        await client.send(Api.METADATA, 5, Metadata(topics=None))
        assert await client.has_ended()


async def test_large_frames_are_for_those_who_are_known(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, client):
        await client.stream.send_all(struct.pack(">ihhi", (64 << 10) + 1, Api.SASL_AUTHENTICATE, 2, 1))
        assert await client.has_ended()


@pytest.mark.parametrize(
    ("name", "password", "said"),
    [
        (NAME, "wrong", "the name or the password is wrong"),
        ("nobody", PASSWORD, "the name or the password is wrong"),
        (NAME, "", "without a name or a password"),
    ],
)
async def test_who_proves_nothing_is_told_and_hung_up_on(
    tmp_path: Path, name: str, password: str, said: str
) -> None:
    async with asking(tmp_path) as (_, client):
        await choose(client)
        refused = await prove(client, plain(name, password))
        assert refused.error_code == KafkaError.SASL_AUTHENTICATION_FAILED and said in refused.error_message
        assert await client.has_ended()


async def test_a_token_without_a_mechanism_and_a_mechanism_that_is_none(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, client):
        assert (await prove(client, plain())).error_code == KafkaError.ILLEGAL_SASL_STATE
        for name in ("GSSAPI", "OAUTHBEARER", "", "plain"):
            refused = await choose(client, name)
            assert refused.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
            assert refused.mechanisms == list(MECHANISMS)
        assert (await prove(client, plain())).error_code == KafkaError.ILLEGAL_SASL_STATE
        # It may choose better, and log in.
        await choose(client)
        assert (await prove(client, plain())).error_code == 0


async def test_a_mechanism_cannot_be_changed_within_an_exchange(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, client):
        await choose(client, "SCRAM-SHA-256")
        assert (await prove(client, b"n,,n=etl,r=nonce")).error_code == 0
        assert (await choose(client, "PLAIN")).error_code == KafkaError.ILLEGAL_SASL_STATE
        refused = await prove(client, plain())
        assert refused.error_code == KafkaError.SASL_AUTHENTICATION_FAILED
        assert await client.has_ended()


async def test_each_user_of_a_request_is_changed_by_itself(tmp_path: Path) -> None:
    Alter = message("AlterUserScramCredentialsRequest")

    def set_(name: str, mechanism: int, iterations: int = 4096) -> Any:
        return Alter.ScramCredentialUpsertion(
            name=name, mechanism=mechanism, iterations=iterations, salt=b"12345678", salted_password=bytes(32)
        )

    def take(name: str, mechanism: int) -> Any:
        return Alter.ScramCredentialDeletion(name=name, mechanism=mechanism)

    async with asking(tmp_path, "") as (node, client), Admin(node.endpoints) as admin:
        asked = Alter(
            deletions=[take(NAME, 2), take("nobody", 1), take("twice", 1)],
            upsertions=[set_("new", 1), set_("weak", 1, 1), set_(NAME, 1, 5000), set_("twice", 1)],
        )
        told = (await client.ask(Api.ALTER_USER_SCRAM_CREDENTIALS, 0, asked)).results
        assert {each.user: each.error_code for each in told} == {
            NAME: 0,
            "nobody": ErrorCode.RESOURCE_NOT_FOUND,
            "twice": ErrorCode.DUPLICATE_RESOURCE,
            "new": 0,
            "weak": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        }
        known = {each.name: each.mechanisms for each in await admin.list_users()}
        assert known == {NAME: {"SCRAM-SHA-256": 5000}, "new": {"SCRAM-SHA-256": 4096}}


async def test_a_listener_without_logins_says_so(tmp_path: Path) -> None:
    async with asking(tmp_path, "") as (_, client):
        assert (await choose(client)).error_code == KafkaError.ILLEGAL_SASL_STATE
        assert (await prove(client, plain())).error_code == KafkaError.ILLEGAL_SASL_STATE
        assert (await client.ask(Api.METADATA, 5, Metadata(topics=None))).cluster_id


async def test_a_login_takes_no_longer_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "LOGIN_SECONDS", 0.2)
    monkeypatch.setattr(listener, "SWEEP", 0.1)
    async with asking(tmp_path) as (_, client):
        assert await client.has_ended()


async def test_a_login_for_which_there_is_no_room_is_not_told_that_it_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients take that for final; when the connection ends they come again."""
    monkeypatch.setattr(_users, "MOST_WAITING", -_users.AT_ONCE)
    async with asking(tmp_path) as (_, client):
        await choose(client)
        await client.send(Api.SASL_AUTHENTICATE, 2, Authenticate(auth_bytes=plain()))
        assert await client.has_ended()


async def test_who_is_deleted_may_do_nothing_more(tmp_path: Path) -> None:
    async with asking(tmp_path) as (node, client), Admin(node.endpoints) as admin:
        await choose(client)
        await prove(client, plain())
        await admin.create_topic("t", partitions=1, replication_factor=1)
        asked = Metadata(topics=None)
        assert [each.name for each in (await client.ask(Api.METADATA, 5, asked)).topics] == ["t"]
        await admin.delete_user(NAME)
        with trio.fail_after(60):
            while (await client.ask(Api.METADATA, 5, asked)).topics:
                pass


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("kafka://127.0.0.1:0?sasl=", "which is not one of PLAIN, SCRAM"),
        ("kafka://127.0.0.1:0?sasl=GSSAPI", "which is not one of PLAIN, SCRAM"),
        ("kafka://0.0.0.0:0?sasl=PLAIN", "passwords in clear text"),
        ("kafka://0.0.0.0:0?sasl=SCRAM-SHA-256,PLAIN", "passwords in clear text"),
        ("kafka://0.0.0.0:0", "or sasl=SCRAM-SHA-256"),
    ],
)
def test_listeners_that_cannot_be(tmp_path: Path, url: str, why: str) -> None:
    with pytest.raises(NodeError, match=why), node_with(tmp_path, url):
        pass


def test_proofs_may_cross_a_network_without_tls_and_passwords_if_asked(tmp_path: Path) -> None:
    for folder in ("1", "2"):
        (tmp_path / folder).mkdir()
    with node_with(tmp_path / "1", "kafka://0.0.0.0:0?sasl=SCRAM-SHA-256,SCRAM-SHA-512"):
        pass
    with node_with(tmp_path / "2", "kafka://0.0.0.0:0?sasl=PLAIN", allow_insecure=True):
        pass
