"""`kafka+tls://`: unmodified clients that check who the node is, and show who they are."""

from __future__ import annotations

import datetime
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from insync.plugins.kafka.protocol import message
from insync.plugins.kafka.protocol.apis import Api
from insync.plugins.kafka.tls import TlsStream, contexts
from insync.replication import BlockingAdmin, Node, NodeSettings
from insync.replication.node import BlockingNode, NodeError
from insync.transport import Endpoint

from ...handshakes import first_flight, noting
from ..programs.test_python_clients import PATIENCE
from ..programs.test_python_clients import librdkafka as librdkafka
from ..steps import Steps
from ..wire_client import WireClient

Versions = message("ApiVersionsRequest")

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("kafka")]


class Authority:
    """Issues certificates for names, and for 127.0.0.1."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        basic = x509.BasicConstraints(ca=True, path_length=None)
        root = self._builder(self._name, self._key).add_extension(basic, critical=True)
        self.path = folder / f"{name}.pem"
        self.path.write_bytes(root.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *more: str) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, each) for each in (name, *more)])
        here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        made = (
            self._builder(subject, key).add_extension(here, critical=False).sign(self._key, hashes.SHA256())
        )
        certificate, key_file = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return certificate, key_file

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name)
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        return builder.not_valid_before(now - day).not_valid_after(now + day)


@contextmanager
def node_with(folder: Path, url: str, **more: Any) -> Iterator[BlockingNode]:
    settings = NodeSettings(
        node_id=1,
        data_dir=folder / "n",
        store=f"sqlite://{folder}/m.db",
        listeners=("tcp://127.0.0.1:0", url),
        **more,
    )
    with BlockingNode(settings) as node:
        yield node


def settings(node: BlockingNode, authority: Authority, client: tuple[Path, Path] | None) -> dict[str, Any]:
    made = {
        "bootstrap.servers": node.gateway_endpoints[0].removeprefix("kafka+tls://"),
        "security.protocol": "ssl",
        "ssl.ca.location": str(authority.path),
        "socket.timeout.ms": 3000,
    }
    if client is not None:
        made |= {"ssl.certificate.location": str(client[0]), "ssl.key.location": str(client[1])}
    return made


def write(librdkafka: Any, given: dict[str, Any], topic: str, size: int = 100) -> Any:
    told: list[Any] = []
    producer = librdkafka.Producer({**given, "message.timeout.ms": 8000})
    producer.produce(topic, b"x" * size, on_delivery=lambda error, message: told.append(error or message))
    producer.flush(PATIENCE)
    return told[0]


@pytest.mark.slow
def test_a_client_that_checks_the_node_and_shows_a_certificate(librdkafka: Any, tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path, "authority"), Authority(tmp_path, "stranger")
    certificate, key = authority.issue("node")
    url = (
        f"kafka+tls://127.0.0.1:0?certificate={certificate}&key={key}"
        f"&client_certificate=required&authorities={authority.path}"
    )
    rules = ("client/etl=produce+consume+admin", "client/reader=consume")
    with node_with(tmp_path, url, allow=rules, secret="of sixteen bytes or more") as node:
        etl = settings(node, authority, authority.issue("etl"))
        assert write(librdkafka, etl, "secrets", 900_000).offset() == 0
        reader = settings(node, authority, authority.issue("reader"))
        refused = write(librdkafka, reader, "secrets")
        assert refused.code() == librdkafka.KafkaError.TOPIC_AUTHORIZATION_FAILED
        consumer = librdkafka.Consumer({**reader, "group.id": "g"})
        consumer.assign([librdkafka.TopicPartition("secrets", 0, 0)])
        (found,) = consumer.consume(1, PATIENCE)
        assert found.value() == b"x" * 900_000
        consumer.close()
        for given in (None, stranger.issue("impostor")):
            failed = write(librdkafka, settings(node, authority, given), "secrets")
            assert failed.code() < 0, "the connection fails, and not the request"


def test_without_client_certificates_it_is_for_this_machine(librdkafka: Any, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("node")
    files = f"certificate={certificate}&key={key}"
    with node_with(tmp_path, f"kafka+tls://127.0.0.1:0?{files}") as node:
        assert write(librdkafka, settings(node, authority, None), "t").offset() == 0
        assert "certificate" not in node.gateway_endpoints[0]
    with (
        pytest.raises(NodeError, match="client_certificate=required"),
        node_with(tmp_path, f"kafka+tls://0.0.0.0:0?{files}"),
    ):
        pass


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("", "add certificate=FILE"),
        ("certificate=/nowhere&key=/nowhere", "cannot be used"),
        ("certificate=/a&key=/b&client_certificate=required", "go together"),
        ("certificate=/a&key=/b&client_certificate=maybe&authorities=/c", "must be 'required', or absent"),
    ],
)
async def test_certificates_that_cannot_be_used(tmp_path: Path, options: str, why: str) -> None:
    made = NodeSettings(
        node_id=1,
        data_dir=tmp_path / "n",
        store=f"sqlite://{tmp_path}/m.db",
        listeners=("tcp://127.0.0.1:0", f"kafka+tls://127.0.0.1:0?{options}"),
    )
    with pytest.raises(NodeError, match=why):
        async with Node(made):
            pass


async def test_who_does_not_shake_hands_is_sent_away(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("node")
    made = NodeSettings(
        node_id=1,
        data_dir=tmp_path / "n",
        store=f"sqlite://{tmp_path}/m.db",
        listeners=("tcp://127.0.0.1:0", f"kafka+tls://127.0.0.1:0?certificate={certificate}&key={key}"),
    )
    async with Node(made) as node:
        port = int(node.gateway_endpoints[0].rpartition(":")[2])
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        async with stream:
            await stream.send_all(b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff")
            with trio.fail_after(10):
                try:
                    while await stream.receive_some(100):
                        pass
                except trio.BrokenResourceError:
                    pass


async def shown_by(node: Node, authority: Authority) -> tuple[trio.SSLStream[Any], int]:
    """A connection, and the serial number of the certificate that it was shown."""
    port = int(node.gateway_endpoints[0].rpartition(":")[2])
    trusted = ssl.create_default_context(cafile=authority.path)
    stream = trio.SSLStream(
        await trio.open_tcp_stream("127.0.0.1", port), trusted, server_hostname="127.0.0.1"
    )
    await stream.do_handshake()
    shown = stream.getpeercert(binary_form=True)
    return stream, x509.load_der_x509_certificate(shown).serial_number


async def test_a_renewed_certificate_is_for_the_next_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("node")
    made = NodeSettings(
        node_id=1,
        data_dir=tmp_path / "n",
        store=f"sqlite://{tmp_path}/m.db",
        listeners=("tcp://127.0.0.1:0", f"kafka+tls://127.0.0.1:0?certificate={certificate}&key={key}"),
    )
    async with Node(made) as node:
        before, first = await shown_by(node, authority)
        authority.issue("node")
        after, second = await shown_by(node, authority)
        assert second != first
        certificate.write_text("-----BEGIN CERT")  # as if half written
        again, third = await shown_by(node, authority)
        assert third == second
        assert "new connections have the previous ones" in caplog.text
        for stream in (before, after, again):
            async with stream:
                await WireClient(stream).ask(Api.API_VERSIONS, 0, Versions())


@asynccontextmanager
async def shaken_hands(folder: Path, *names: str) -> AsyncIterator[tuple[TlsStream, str]]:
    """The node's end after the handshake, closed with the block, and the name that it was shown.

    names: the common names in the client's certificate; without any it shows none, and is asked for none.
    """
    authority = Authority(folder, "authority")
    certificate, key = authority.issue("node")
    here, there = socket.socketpair()
    here.setblocking(False)
    there.setblocking(False)
    made = contexts(str(certificate), str(key), str(authority.path) if names else None)
    stream = TlsStream(here, made, Endpoint("kafka+tls", "127.0.0.1:0"), trio.Lock())
    trusted = ssl.create_default_context(cafile=authority.path)
    if names:
        trusted.load_cert_chain(*authority.issue(*names))
    client = trio.SSLStream(
        trio.SocketStream(trio.socket.from_stdlib_socket(there)), trusted, server_hostname="127.0.0.1"
    )
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.do_handshake)
            name = await stream.prepare()
        yield stream, name
        await stream.aclose()
    there.close()


async def test_a_connection_that_was_aborted_is_closed_like_any_other(tmp_path: Path) -> None:
    """Closing it again raises nothing: what follows, such as telling the node that the client has gone, is done."""
    async with shaken_hands(tmp_path) as (stream, name):
        assert name == ""
        stream.abort()


async def test_a_certificate_names_its_client(tmp_path: Path) -> None:
    async with shaken_hands(tmp_path, "a") as (_, name):
        assert name == "a"


def test_a_certificate_with_several_names_is_refused(
    librdkafka: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("node")
    url = (
        f"kafka+tls://127.0.0.1:0?certificate={certificate}&key={key}"
        f"&client_certificate=required&authorities={authority.path}"
    )
    with node_with(tmp_path, url) as node:
        with BlockingAdmin(node.endpoints) as admin:
            admin.create_topic("t", 1, 1)
        assert not isinstance(
            write(librdkafka, settings(node, authority, authority.issue("a")), "t"), librdkafka.KafkaError
        )
        refused = write(librdkafka, settings(node, authority, authority.issue("b", "a\x1b")), "t")
        assert refused.code() == librdkafka.KafkaError._MSG_TIMED_OUT
    assert r"its certificate has the common names 'b', 'a\x1b': issue one with a single name" in caplog.text


async def test_of_many_handshakes_one_goes_on_in_each_step_of_the_loop(tmp_path: Path) -> None:
    """Each takes milliseconds: of those that come together, nobody else would be served for seconds."""
    certificate, key = Authority(tmp_path, "authority").issue("node")
    steps = Steps()
    taken: dict[ssl.SSLObject, int] = {}

    made, turns, pairs = contexts(str(certificate), str(key), None), trio.Lock(), []
    made.get().sslobject_class = noting(steps, taken)
    trio.lowlevel.add_instrument(steps)
    try:
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                here, there = socket.socketpair()
                here.setblocking(False)
                pairs.append(there)
                stream = TlsStream(here, made, Endpoint("kafka+tls", "127.0.0.1:0"), turns)
                nursery.start_soon(stream.prepare)
            await trio.testing.wait_all_tasks_blocked()
            taken.clear()
            hello = first_flight()
            for there in pairs:
                there.sendall(hello)
            with trio.fail_after(PATIENCE):
                while len(taken) < len(pairs):
                    await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    finally:
        trio.lowlevel.remove_instrument(steps)
        for there in pairs:
            there.close()
    assert len(set(taken.values())) == len(pairs)
