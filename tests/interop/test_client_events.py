"""Jobs of `differential --clients` at our nodes alone: they work, and a wrong answer of a node is a difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from insync.plugins.kafka.protocol import message
from insync.plugins.kafka.protocol.apis import Api
from insync.replication.core.errors import ErrorCode

from ..plugins.kafka.wire_client import WireClient
from .events import allowed, compare

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("kafka")]
JOB = "resets"
WRONG = """
from insync.plugins.kafka.handlers import offsets

right = offsets._offsets


def wrong(found):
    found = {place: (error, at + (at == 2), *rest) for place, (error, at, *rest) in found.items()}
    return right(found)


offsets._offsets = wrong
"""
"""The start of the log, 2, is told as 3 to who looks it up. Python runs it in the nodes before all else."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[compare.Place]:
    with compare.nodes(tmp_path_factory.mktemp("right")) as made:
        yield made


@pytest.fixture(scope="module")
def first_told(place: compare.Place) -> Counter[int]:
    """Errors of the first questions to coordinators in a new cluster, each put to the node that was named."""
    return trio.run(_first_told, place.servers.split(","))


async def _first_told(servers: list[str]) -> Counter[int]:
    told: Counter[int] = Counter()
    with trio.fail_after(60):
        clients = {each: await WireClient.connect(f"kafka://{each}") for each in servers}
        for number in range(20):
            find = message("FindCoordinatorRequest")(key=f"g{number}", key_type=0)
            asked = clients[servers[number % 3]]
            found = await asked.ask(Api.FIND_COORDINATOR, 2, find)
            while found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE:
                await trio.sleep(0.002)
                found = await asked.ask(Api.FIND_COORDINATOR, 2, find)
            describe = message("DescribeGroupsRequest")(groups=[f"g{number}"])
            answer = await clients[f"{found.host}:{found.port}"].ask(Api.DESCRIBE_GROUPS, 0, describe)
            told[answer.groups[0].error_code] += 1
        for each in clients.values():
            await each.stream.aclose()
    return told


@pytest.fixture(scope="module")
def right(place: compare.Place, first_told: object) -> compare.Events:
    for client in ("confluent_kafka", "kafka", "aiokafka"):
        pytest.importorskip(client)
    return compare.events(place, compare.programs(None), JOB)


@pytest.mark.slow
def test_a_coordinator_that_is_named_does_not_say_that_it_loads(
    first_told: Counter[int],
) -> None:
    assert ErrorCode.COORDINATOR_LOAD_IN_PROGRESS not in first_told, first_told
    assert first_told[0] >= 15, first_told


@pytest.mark.slow
def test_a_client_tells_what_it_is_to_tell(right: compare.Events) -> None:
    told = {event: value for (client, _, event), value in right.items() if client == "librdkafka"}
    assert told["earliest, before the start"] == [
        ["record", 0, 2],
        ["record", 0, 3],
        ["record", 0, 4],
        ["end", 0, 5],
    ]
    assert told["latest, behind the end"] == [["end", 0, 5]]
    assert told["error, behind the end"] == [["error", "_AUTO_OFFSET_RESET"]]
    for client in ("kafka-python", "aiokafka"):
        assert right[client, JOB, "earliest, from 1"] == [2, 3, 4]
        assert right[client, JOB, "latest, from 9"] == []
        assert right[client, JOB, "none, from 9"] == [["OffsetOutOfRangeError"]]
    assert not [key for key in right if key[2] == "ends with"]


@pytest.mark.slow
def test_a_wrong_answer_of_a_node_is_a_difference(
    right: compare.Events, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = tmp_path / "planted"
    planted.mkdir()
    (planted / "sitecustomize.py").write_text(WRONG)
    with compare.nodes(tmp_path / "wrong", env={"PYTHONPATH": str(planted)}) as place:
        found = compare.events(place, compare.programs(None), JOB)
    wrong, _ = compare.compare(found, right)
    for client, first in (
        ("librdkafka", '["record", 0, 3]'),
        ("kafka-python", "3"),
        ("aiokafka", "3"),
    ):
        begins = f"{client}: resets: earliest, nothing committed: ours [{first}"
        assert any(each.startswith(begins) for each in wrong), wrong
    assert compare.compare(right, right) == ([], set())


@pytest.mark.slow
def test_what_is_allowed_is_met_and_an_event_that_only_one_has_is_a_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compare, "ALLOWED", {"java: reads: a": "on purpose", "java: reads: c": "never met"})
    ours: compare.Events = {("java", "reads", "a"): 1, ("java", "reads", "b"): [2], ("java", "reads", "c"): 3}
    theirs: compare.Events = {("java", "reads", "a"): 2, ("java", "reads", "c"): 3, ("java", "reads", "d"): 4}
    wrong, met = compare.compare(ours, theirs)
    assert wrong == [
        'java: reads: b: ours [2], Kafka\'s "no such event"',
        'java: reads: d: ours "no such event", Kafka\'s 4',
    ]
    assert met == {"java: reads: a"}
    assert all(reason and "\n" not in reason for reason in allowed.ALLOWED.values())
