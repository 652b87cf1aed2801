"""The kit of gateways: the example of the page and the framework's own pass, and each broken variant is caught."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import trio

from insync.plugins.kafka.gateway import KafkaGateway
from insync.replication.node.gateway_testing import CASES, Case, GatewayBench, PromiseBrokenError
from insync.replication.node.gateways._service import Service
from insync.replication.node.service import Caller

PAGE = Path(__file__).parents[4] / "docs" / "writing-a-gateway.md"
NAMES: dict[str, Any] = {}
exec(compile(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)[0], str(PAGE), "exec"), NAMES)
Echo, EchoClient = NAMES["EchoGateway"], NAMES["EchoClient"]


class EchoBench(GatewayBench):
    def __init__(self, gateway: Any = Echo) -> None:
        self._gateway = gateway

    def gateway(self) -> Any:
        return self._gateway()

    def url(self) -> str:
        return "echo://127.0.0.1:0"

    def open_url(self) -> str:
        return "echo://0.0.0.0:0"

    def malformed(self) -> list[str]:
        return ["echo://", "echo://127.0.0.1", "echo://127.0.0.1:port"]

    async def use(self, stream: trio.SocketStream) -> None:
        await stream.send_all(b"topics?\n")
        assert await stream.receive_some() == b"0\n"


class KafkaBench(EchoBench):
    """By ApiVersions, version 0, and Metadata: the former needs no node."""

    def __init__(self) -> None:
        super().__init__(KafkaGateway)

    def url(self) -> str:
        return "kafka://127.0.0.1:0"

    def open_url(self) -> str:
        return "kafka://0.0.0.0:0"

    def malformed(self) -> list[str]:
        return ["kafka://", "kafka://127.0.0.1", "kafka://127.0.0.1:9?partitions=2"]

    async def use(self, stream: trio.SocketStream) -> None:
        body = (10).to_bytes(2) + (0).to_bytes(2) + (7).to_bytes(4) + b"\xff\xff" + b"\0\x01g"
        await stream.send_all(len(body).to_bytes(4) + body)
        found = b""
        while len(found) < 8:
            chunk = await stream.receive_some()
            assert chunk, "it hung up"
            found += chunk
        assert found[4:8] == (7).to_bytes(4)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_the_example_of_the_page(case: Case) -> None:
    await case.run(EchoBench())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_kafka(case: Case) -> None:
    await case.run(KafkaBench())


async def test_the_node_of_the_kit_hears_of_each_client_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    gone: list[Caller] = []
    hear = Service.gone

    def heard(service: Service, caller: Caller) -> None:
        gone.append(caller)
        hear(service, caller)

    monkeypatch.setattr(Service, "gone", heard)
    (case,) = [case for case in CASES if case.name == "who_has_left_is_gone"]
    await case.run(EchoBench())
    assert len(gone) == len(set(gone)) == 3


def source_without(*changes: tuple[str, str]) -> Any:
    """The example, with something left out or otherwise."""
    text = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)[0]
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    names: dict[str, Any] = {}
    exec(compile(text, "broken", "exec"), names)
    return names["EchoGateway"]


DEAD = r"^(OSError: all attempts to connect|AssertionError|BrokenResourceError|it has ended by itself)"
"""What a client sees of a gateway that has ended, whenever it looks."""

BROKEN: list[tuple[str, tuple[tuple[str, str], ...], str]] = [
    ("malformed_urls_are_refused", (("        split_host_port(url)\n", ""),), r"^echo:// was taken$"),
    ("it_tells_where_clients_reach_it", (("{at[1]}", "0"),), r"^echo://[^:]+:0 has no port$"),
    (
        "nobody_is_served_before_the_node_is_ready",
        (("        await service.ready()\n", ""),),
        r"^a client's request came to a node that was not ready$",
    ),
    ("clients_are_no_nodes", (("node_id=-1", "node_id=4"),), r"^a client says that it is node 4$"),
    (
        "clients_are_no_nodes",
        (
            ("import socket\n", "import socket\nKEPT = []\n"),
            ("service.ask(caller,", "service.ask(KEPT[0],"),
            ("            try:\n", "            KEPT.append(caller)\n            try:\n"),
        ),
        r"^two clients were 1 callers$",
    ),
    (
        "who_has_left_is_gone",
        (("                service.gone(caller)\n", "                pass\n"),),
        r"^within 2 s not so: all who have left are gone$",
    ),
    (
        "an_aborted_client_is_disconnected",
        (("        self.scope.cancel()\n", "        pass\n"),),
        r"^the connection had not ended after 2 s$",
    ),
    (
        "an_aborted_client_is_disconnected",
        (
            ("import socket\n", "import socket\nKEPT = []\n"),
            (
                "            finally:\n",
                "            finally:\n                KEPT.append(stream.socket.dup())\n",
            ),
        ),
        r"^the connection had not ended after 2 s$",
    ),
    (
        "strangers_harm_nobody",
        (("async for _ in stream:\n", "async for line in stream:\n" + " " * 24 + "line.decode()\n"),),
        DEAD,
    ),
    ("strangers_harm_nobody", (("except trio.BrokenResourceError:", "except ZeroDivisionError:"),), DEAD),
    (
        "an_address_that_others_reach_wants_a_proof",
        (("raise InsecureAddressError(", "print("),),
        r"^it listens on echo://0\.0\.0\.0:0 for whoever comes$",
    ),
    (
        "an_address_in_use_is_an_error_of_the_system",
        (("port, host=host)", "0, host=host)"),),
        r"^it says that it listens on echo://127\.0\.0\.1:\d+, where another one does$",
    ),
    (
        "it_ends_with_its_node",
        (
            ("import socket\n", "import socket\nKEPT = []\n"),
            (".getsockname()\n", ".getsockname(); KEPT.append(listener.socket.dup())\n"),
        ),
        r"^a listener is still open on echo://127\.0\.0\.1:\d+$",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changes", "seen"), BROKEN, ids=[f"{name}-{at}" for at, (name, *_) in enumerate(BROKEN)]
)
async def test_a_broken_gateway_fails_and_what_was_seen_is_told(
    name: str, changes: tuple[tuple[str, str], ...], seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("insync.replication.node.gateways.kit._SOON", 2.0)
    (case,) = [case for case in CASES if case.name == name]
    with pytest.raises(PromiseBrokenError) as caught:
        await case.run(EchoBench(source_without(*changes)))
    said, _, told = str(caught.value).partition("\nSeen: ")
    assert case.promise in said
    assert re.search(seen, told), told


def test_every_case_has_a_broken_variant() -> None:
    assert {name for name, *_ in BROKEN} == {case.name for case in CASES}
