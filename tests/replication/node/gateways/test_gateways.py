"""Gateways: what a node offers them, and what becomes of their mistakes."""

from __future__ import annotations

import gc
import logging
import re
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar

import pytest
import trio
import trio.lowlevel
from msgspec import structs

from insync.replication import Admin, Consumer, Node, NodeSettings
from insync.replication.core import messages as m
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import groups as gm
from insync.replication.metadata import StoreUnavailableError
from insync.replication.node import NodeError
from insync.replication.node.gateways import gateways
from insync.replication.node.requests.authorisation import Operation
from insync.replication.node.service import Answer, Caller, NodeService, NotAllowedError, ServiceError
from insync.replication.node.store._client_state import KeptForClients
from insync.replication.wire import WireError
from insync.storage.batch import build_batch
from insync.transport import URL, Endpoint, PeerIdentity, Security, Serving, bytes_payload
from insync.transport.kit._frame import until


class Client(Caller):
    def __init__(self, name: str = "") -> None:
        self.peer = PeerIdentity(
            cluster_id="", node_id=-1, incarnation=0, lane="data", method="token", name=name
        )
        self.aborted = ""

    def abort(self, reason: str) -> None:
        self.aborted = reason


class Probe(gateways.Gateway):
    """Listens nowhere; tests call the service that it is given."""

    schemes: ClassVar = ("probe",)
    service: ClassVar[NodeService]
    fault: ClassVar[dict[str, BaseException]] = {}
    serving: ClassVar[trio.Event]

    def parse(self, url: URL) -> Endpoint:
        self._fail("parse")
        if not url.authority:
            raise ValueError(f"{url}: no place")
        return url

    async def serve(
        self,
        endpoint: Endpoint,
        service: NodeService,
        security: Security,
        *,
        task_status: trio.TaskStatus[Serving],
    ) -> None:
        self._fail("listen")
        type(self).service = service
        task_status.started(Serving([str(endpoint)]))
        await service.ready()
        type(self).serving.set()
        self._fail("serve")
        await trio.sleep_forever()

    def _fail(self, where: str) -> None:
        if where in self.fault:
            raise self.fault[where]


class NoGateway:
    schemes = ("probe",)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """The gateway above as an entry point; what is called again installs another class of this module instead."""

    def install(name: str) -> None:
        monkeypatch.setattr(gateways, "_made", {})
        point = EntryPoint("probe", f"{__name__}:{name}", gateways.GROUP)
        monkeypatch.setattr(gateways, "entry_points", lambda group: [point])

    monkeypatch.setattr(Probe, "fault", {})
    install("Probe")
    return install


@asynccontextmanager
async def node_at(folder: Path, url: str = "probe://here", **options: Any) -> AsyncIterator[Node]:
    Probe.serving = trio.Event()
    settings = NodeSettings(
        node_id=1,
        data_dir=folder / "n",
        store=f"sqlite://{folder}/m.db",
        listeners=("tcp://127.0.0.1:0", url),
        **options,
    )
    async with Node(settings) as node:
        yield node


def batch(*values: bytes) -> bytes:
    return build_batch([None] * len(values), values, timestamps_ms=1)


async def ask(client: Caller, message: object, payload: bytes = b"") -> Any:
    return await Probe.service.ask(client, message, payload=bytes_payload(payload))


async def make_topic(name: str = "t") -> None:
    request, error = m.CreateTopicRequest(name=name, partitions=1, replication_factor=1), None
    while error is None or error == ErrorCode.NOT_CONTROLLER:  # a moment after the start there is none yet
        error = (await ask(Client(), request)).message.error
    assert error == ErrorCode.NONE
    while name not in Probe.service.view.topics:
        await Probe.service.confirm_view()
    end = m.ListOffsetsPartition(topic=name, partition=0, timestamp=m.LATEST_TIMESTAMP)
    found = None
    while found is None or found.error != ErrorCode.NONE:  # its log is being made
        (found,) = (await ask(Client(), m.ListOffsetsRequest(partitions=[end]))).message.partitions
        await trio.lowlevel.checkpoint()


def fetch(offset: int = 0, wait_ms: int = 0, **options: Any) -> m.FetchRequest:
    part = m.FetchPartition(topic="t", partition=0, fetch_offset=offset, max_bytes=1 << 20)
    return m.FetchRequest(
        replica_id=-1,
        incarnation=0,
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        partitions=[part],
        **options,
    )


def produce(data: bytes) -> m.ProduceRequest:
    return m.ProduceRequest(
        acks=-1,
        timeout_ms=5000,
        partitions=[m.ProducePartition(topic="t", partition=0, size=len(data))],
    )


async def test_what_clients_of_a_gateway_write_and_read(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node:
        assert node.gateway_endpoints == ["probe://here"]
        assert Probe.service.view.nodes[1].endpoints == (*node.endpoints, "probe://here")
        await make_topic()
        data, client = batch(b"one", b"two"), Client()
        answer = await ask(client, produce(data), data)
        assert [(each.error, each.base_offset) for each in answer.message.partitions] == [(0, 0)]
        found = await ask(client, fetch())
        (result,), (part,) = found.message.partitions, found.parts
        assert result.size == part.length and result.high_watermark == 2
        # Other clients are not kept away by an address that they do not understand.
        async with Consumer(node.endpoints, auto_offset_reset="earliest") as consumer:
            consumer.assign([("t", 0)])
            records = await consumer.poll(5000)
        assert [record.value for record in records] == [b"one", b"two"]


async def test_the_page_writes_and_reads_records(tmp_path: Path) -> None:
    page = Path(__file__).parents[4] / "docs" / "writing-a-gateway.md"
    names: dict[str, Any] = {}
    exec(compile(re.findall(r"```python\n(.*?)```", page.read_text(), re.S)[1], str(page), "exec"), names)
    async with node_at(tmp_path):
        await make_topic()
        at = (Probe.service, Client(), "t", 0)
        assert await names["write"](*at, [b"one", b"two"]) == 0
        assert await names["write"](*at, [b"three"]) == 2
        assert [each.value for each in await names["read"](*at, 1)] == [b"two", b"three"]
        assert await names["read"](*at, 3) == []
        for way, last in (("write", [b"x"]), ("read", 0)):
            with pytest.raises(ServiceError, match="t-9: UNKNOWN_TOPIC_OR_PARTITION, leader -1"):
                await names[way](Probe.service, Client(), "t", 9, last)


async def test_a_parked_call_ends_with_its_client_and_is_not_answered(tmp_path: Path) -> None:
    async with node_at(tmp_path):
        await make_topic()
        service, answers = Probe.service, list[Answer | ServiceError]()
        ends = (lambda ticket, client: ticket.cancel(), lambda _, client: service.gone(client))
        for offset, end in enumerate(ends):
            client = Client()
            ticket = service.call(client, fetch(offset, wait_ms=60_000), answers.append)
            assert service._driver.broker.serving.parked  # type: ignore[attr-defined]
            end(ticket, client)
            assert not service._driver.broker.serving.parked  # type: ignore[attr-defined]
            data = batch(b"x")
            await ask(Client(), produce(data), data)
        assert answers == []
        assert not service._calls  # type: ignore[attr-defined]


async def test_a_question_that_is_cancelled_is_not_parked_any_more(tmp_path: Path) -> None:
    async with node_at(tmp_path):
        await make_topic()
        serving = Probe.service._driver.broker.serving  # type: ignore[attr-defined]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Probe.service.ask, Client(), fetch(0, wait_ms=60_000))
            await until(lambda: bool(serving.parked), "it is parked")
            nursery.cancel_scope.cancel()
        assert not serving.parked


async def test_nothing_is_kept_of_a_client_that_is_gone(tmp_path: Path) -> None:
    """Until then the node goes by what the client was given to read."""
    async with node_at(tmp_path):
        await make_topic()
        data, client = batch(b"x"), Client()
        await ask(client, produce(data), data)
        await ask(client, fetch())
        kept = weakref.ref(client)
        Probe.service.gone(client)
        del client
        gc.collect()
        assert kept() is None


async def test_rules_hold_for_clients_of_gateways(tmp_path: Path) -> None:
    secret = "a secret of sixteen bytes or more"
    async with node_at(tmp_path, secret=secret, allow=("client/reader=consume", "client/boss=admin")):
        boss, reader = Client("boss"), Client("reader")
        await ask(boss, m.CreateTopicRequest(name="t", partitions=1, replication_factor=1))
        with pytest.raises(NotAllowedError, match="client/reader may not produce") as refused:
            await ask(reader, produce(b""))
        assert refused.value.code == ErrorCode.INVALID_REQUEST
        with pytest.raises(NotAllowedError):
            await ask(boss, fetch())
        with pytest.raises(NotAllowedError):
            await ask(boss, m.GetReplicaLogInfoRequest(partitions=[]))
        assert Probe.service.allowed(reader.peer) == {Operation.CONSUME}


async def test_a_client_of_a_gateway_is_no_node(tmp_path: Path) -> None:
    async with node_at(tmp_path):
        await make_topic()
        with pytest.raises(NotAllowedError, match="may not replicate"):
            await ask(Client(), structs.replace(fetch(), replica_id=2))


async def test_what_is_no_request_is_refused(tmp_path: Path) -> None:
    async with node_at(tmp_path):
        with pytest.raises(TypeError, match="str is not a request"):
            Probe.service.call(Client(), "fetch", lambda answer: None)


async def test_a_confirmed_view_shows_what_was_written_before(tmp_path: Path) -> None:
    async with node_at(tmp_path), node_two(tmp_path) as second, Admin(second.endpoints[:1]) as admin:
        service = Probe.service
        reads = count_reads(service)
        await admin.create_topic("late", partitions=1, replication_factor=1)
        async with trio.open_nursery() as nursery:
            views: list[Any] = []

            async def confirm() -> None:
                views.append(await service.confirm_view())

            before = reads()
            for _ in range(50):
                nursery.start_soon(confirm)
        assert all("late" in view.topics for view in views)
        # One for the first, one for those who came while it was read, and those of the watch.
        assert reads() - before <= 5


async def test_the_answer_of_another_node_is_a_message_here(tmp_path: Path) -> None:
    """The node that was there first is the controller, and answers in the place of the gateway's."""
    async with node_two(tmp_path) as second, Admin(second.endpoints[:1]) as admin:
        await admin.create_topic("first", partitions=1, replication_factor=1)
        async with node_at(tmp_path):
            controller = (await Probe.service.confirm_view()).controller
            assert controller is not None and controller.node_id == 2
            request = m.CreateTopicRequest(name="t", partitions=1, replication_factor=1)
            with trio.fail_after(30):
                answer = (await ask(Client(), request)).message
            assert isinstance(answer, m.CreateTopicResponse) and answer.error == ErrorCode.NONE, answer


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreUnavailableError("no answer"), ErrorCode.LEADER_NOT_AVAILABLE),
        (WireError("malformed record"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
async def test_what_the_store_fails_at_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, code: ErrorCode
) -> None:
    """Clients try again what may be reached soon, and not what cannot be read."""

    async def fail(*_: object) -> None:
        raise error

    async with node_at(tmp_path):
        for name in ("offsets", "producer"):
            monkeypatch.setattr(KeptForClients, name, fail)
        for request in (m.OffsetFetchRequest(group="g"), m.InitProducerIdRequest(identity="p")):
            answer = (await ask(Client(), request)).message
            assert (answer.error, answer.message) == (code, str(error))


@asynccontextmanager
async def node_two(folder: Path) -> AsyncIterator[Node]:
    settings = NodeSettings(node_id=2, data_dir=folder / "n2", store=f"sqlite://{folder}/m.db")
    async with Node(settings) as node:
        yield node


def count_reads(service: Any) -> Callable[[], int]:
    state, count = service._state, 0
    inner = state._read

    async def read() -> None:
        nonlocal count
        count += 1
        await inner()

    state._read = read
    return lambda: count


async def test_a_gateway_that_raises_over_an_answer_loses_that_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with node_at(tmp_path) as node:
        client = Client()

        def fail(answer: object) -> None:
            raise KeyError("the gateway's own")

        Probe.service.call(client, m.MetadataRequest(), fail)
        assert "raised while it sent an answer" in client.aborted
        async with Admin(node.endpoints) as admin:
            await admin.create_topic("t", partitions=1, replication_factor=1)
    assert "KeyError" in caplog.text


async def test_a_gateway_that_cannot_even_hang_up_harms_nobody_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Clumsy(Client):
        def abort(self, reason: str) -> None:
            raise OSError("it was closed twice")

    def fail(answer: object) -> None:
        raise KeyError("the gateway's own")

    async with node_at(tmp_path) as node:
        await make_topic()
        client = Clumsy()
        Probe.service.call(client, m.MetadataRequest(), fail)
        # Answered when records come, by a step of the node.
        Probe.service.call(client, fetch(wait_ms=60_000), fail)
        await ask(Client(), produce(batch(b"v")), batch(b"v"))
        await ask(Client(), m.MetadataRequest())
        async with Admin(node.endpoints) as admin:
            await admin.describe_topics(["t"])
    assert caplog.text.count("raised while it closed a connection") == 2


WRONG: list[Any] = [
    m.OffsetCommitRequest(group=None, offsets=[]),  # type: ignore[arg-type]
    m.OffsetCommitRequest(group="g", offsets=[None]),  # type: ignore[list-item]
    m.OffsetFetchRequest(group=7),  # type: ignore[arg-type]
    m.InitProducerIdRequest(identity=["x"]),  # type: ignore[arg-type]
    m.VerifyUserRequest(name=[], password=None),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("message", WRONG, ids=repr)
async def test_values_of_the_wrong_type_are_answered_with_that(tmp_path: Path, message: Any) -> None:
    async with node_at(tmp_path):
        with pytest.raises(ServiceError, match="Error: "):
            await ask(Client(), message)
        await ask(Client(), m.MetadataRequest())


@pytest.mark.parametrize("value", [2**70, object()], ids=["number", "object"])
async def test_values_that_no_message_has_are_not_passed_on(tmp_path: Path, value: Any) -> None:
    """To the controller, which is another node."""
    listeners = ("tcp://127.0.0.1:0",)
    first = NodeSettings(
        node_id=7, data_dir=tmp_path / "first", store=f"sqlite://{tmp_path}/m.db", listeners=listeners
    )
    async with Node(first) as other:
        async with Admin(other.endpoints) as admin:
            await admin.create_topic("t", partitions=1, replication_factor=1)
        async with node_at(tmp_path):
            while Probe.service.view.controller is None:
                await Probe.service.confirm_view()
            wrong = m.AlterConfigRequest(name="t", config={"retention_ms": value})
            answer = (await ask(Client(), wrong)).message
            assert "AlterConfigRequest cannot be passed on: " in answer.message, answer
            right = m.AlterConfigRequest(name="t", config={"retention_ms": 5})
            assert (await ask(Client(), right)).message.error == ErrorCode.NONE


async def test_watchers_hear_of_views_until_they_say_no(tmp_path: Path) -> None:
    async with node_at(tmp_path):
        seen: list[int] = []
        stop = Probe.service.watch_view(lambda: seen.append(Probe.service.view.revision))
        Probe.service.watch_view(lambda: 1 / 0)  # harms nobody
        await make_topic()
        await until(lambda: bool(seen), "the view has changed")
        stop()
        told = list(seen)
        await make_topic("u")
        assert seen == told


async def test_a_scheme_that_is_nearly_a_gateways_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match=r"scheme probes; did you mean probe://\?"):
        async with node_at(tmp_path, "probes://here"):
            pass


@pytest.mark.parametrize("where", ["parse", "listen"])
@pytest.mark.parametrize("error", [ValueError("no port"), RuntimeError("a bug")], ids=["expected", "bug"])
async def test_a_gateway_that_cannot_listen_is_an_error_of_the_node(
    where: str, error: Exception, tmp_path: Path
) -> None:
    Probe.fault[where] = error
    with pytest.raises(NodeError, match=str(error)):
        async with node_at(tmp_path):
            pass


async def test_a_gateway_that_fails_later_leaves_the_node_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Probe.fault["serve"] = ExceptionGroup("of a nursery", [RuntimeError("a bug")])
    caplog.set_level(logging.ERROR)
    async with node_at(tmp_path) as node:
        await until(lambda: "has stopped" in caplog.text, "the log tells of it")
        assert "RuntimeError: a bug" in caplog.text
        async with Admin(node.endpoints) as admin:
            await admin.create_topic("t", partitions=1, replication_factor=1)


async def test_what_is_installed_under_the_scheme_is_looked_at(
    tmp_path: Path, installed: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed("NoGateway")
    with pytest.raises(NodeError, match="not a subclass of Gateway"):
        async with node_at(tmp_path):
            pass
    installed("Nowhere")
    with pytest.raises(NodeError, match="cannot be loaded"):
        async with node_at(tmp_path):
            pass
    installed("Probe")
    monkeypatch.setattr(Probe, "api_version", (2, 0))
    with pytest.raises(NodeError, match=r"version 2\.0"):
        async with node_at(tmp_path):
            pass
    with pytest.raises(NodeError, match="no transport for nobody://"):
        async with node_at(tmp_path, "nobody://here"):
            pass


async def test_groups_are_coordinated_for_clients_of_gateways(tmp_path: Path) -> None:
    async with node_at(tmp_path, offsets_topic_num_partitions=1) as node, Admin(node.endpoints[:1]) as admin:
        await admin.create_topic("t", partitions=1, replication_factor=1)
        client, service = Client(), Probe.service
        found = gm.Coordinator(key="", error=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        with trio.fail_after(60):
            while found.error:
                answer = (await service.ask(client, gm.FindCoordinatorRequest(keys=["g"]))).message
                assert isinstance(answer, gm.FindCoordinatorResponse)
                (found,) = answer.coordinators
            join = gm.ConsumerGroupHeartbeatRequest(
                group="g",
                member_id="m",
                member_epoch=0,
                rebalance_timeout_ms=1000,
                topics=["t"],
                owned=[],
                client_host="/192.0.2.7",
            )
            joined = gm.ConsumerGroupHeartbeatResponse(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            while joined.error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                answer = (await service.ask(client, join)).message
                assert isinstance(answer, gm.ConsumerGroupHeartbeatResponse)
                joined = answer
            described = (await service.ask(client, gm.DescribeGroupsRequest(groups=["g"]))).message
        assert joined.error == 0
        assert isinstance(described, gm.DescribeGroupsResponse)
        assert described.groups[0].members[0].client_host == "/192.0.2.7"
