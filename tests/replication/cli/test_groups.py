"""`insync group` and `insync consume --group`, on a node of its own process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
import trio

from insync.replication.cli import main
from insync.replication.client import Admin, BlockingConsumer, Producer
from tests.processes import STEADY, cluster

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster(tmp_path_factory.mktemp("groups"), 1, *STEADY) as (node,):
        trio.run(_fill, node.endpoint)
        yield node.endpoint


async def _fill(url: str) -> None:
    async with Admin(url) as admin, Producer(url) as producer:
        await admin.create_topic("t", 2, 1)
        for partition in range(2):
            for n in range(5):
                sent = await producer.send(
                    "t", b"%d%d" % (partition, n), partition=partition, timestamp_ms=1_000 * (n + 1)
                )
                await sent.wait()


@pytest.fixture
def run(server: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("INSYNC_SERVERS", server)

    def once(*arguments: str) -> tuple[int, str, str]:
        status = main(list(arguments))
        return status, *capfd.readouterr()

    return once


def offsets(run: Run, group: str) -> dict[int, int | None]:
    described = json.loads(run("group", "describe", group, "--json")[1])
    return {each["partition"]: each["committed"] for each in described["partitions"]}


def test_what_a_group_has_printed_it_does_not_print_again(run: Run) -> None:
    read = ["consume", "t", "--group", "printer", "--from-beginning", "--timeout-ms", "60000"]
    status, first, _ = run(*read, "--max-records", "4")
    assert (status, len(first.splitlines())) == (0, 4)
    assert sum(each or 0 for each in offsets(run, "printer").values()) == 4
    _, rest, _ = run(*read, "--max-records", "6")
    assert sorted((first + rest).split()) == [f"{p}{n}" for p in range(2) for n in range(5)]
    status, out, _ = run("group", "describe", "printer")
    assert status == 0
    assert "group printer: consumer, Empty" in out and "lag 0" in out
    assert "t-0: committed 5, end 5, lag 0; owner none" in out


def test_a_group_goes_on_where_it_is_told(run: Run) -> None:
    reset = ["group", "reset-offsets", "billing"]
    status, out, _ = run(*reset, "--topic", "t", "--to-latest", "--dry-run")
    assert (status, out.splitlines()[0]) == (0, "t-0: would go on at 5, was not committed")
    assert run("group", "describe", "billing")[0] == 1
    assert run(*reset, "--topic", "t", "--to-latest", "--yes")[0] == 0
    for way, expected in (
        (["--to-earliest"], {0: 0, 1: 0}),
        (["--to-offset", "3"], {0: 3, 1: 3}),
        (["--shift-by", "-2"], {0: 1, 1: 1}),
        (["--to-datetime", "3500"], {0: 3, 1: 3}),
        (["--topic", "t:1", "--to-offset", "99"], {0: 3, 1: 5}),
    ):
        status, out, _ = run(*reset, *way, "--yes", "--json")
        assert status == 0 and json.loads(out)["dry_run"] is False
        assert offsets(run, "billing") == expected, way
    assert run("group", "list")[1].splitlines()[0] == "billing: simple, Empty"
    told = run("status")[1]
    assert "consumer groups: " in told
    assert "group billing is 2 behind: t-0 2\n" in told
    assert json.loads(run("status", "--json")[1])["group_lag"]["billing"] == {"t-0": 2}
    top = json.loads(run("top", "--once", "--groups", "--interval", "0.1", "--json")[1])
    assert [(each["group"], each["lag"]) for each in top["groups"] if each["group"] == "billing"] == [
        ("billing", 2)
    ]
    assert "billing" in run("top", "--once", "--groups", "--interval", "0.1")[1]
    status, out, _ = run("group", "delete-offsets", "billing", "--topic", "t:0", "--yes")
    assert (status, out) == (0, "t-0: forgotten, was 3\n")
    assert run("group", "delete", "billing", "--yes") == (0, "deleted group billing\n", "")
    assert "billing" not in run("group", "list", "--json")[1]


def test_a_group_with_members_is_left_alone(run: Run, server: str) -> None:
    with BlockingConsumer(server, group_id="busy", auto_offset_reset="earliest", client_id="c7") as consumer:
        consumer.subscribe(["t"])
        while not consumer.poll(500):
            pass
        consumer.commit()
        for arguments, said in (
            (["reset-offsets", "busy", "--to-earliest", "--yes"], "it has members; stop its consumers"),
            (["delete", "busy", "--yes"], "stop its consumers"),
            (["delete-offsets", "busy", "--topic", "t", "--yes"], "stop the consumers that subscribe"),
        ):
            status, out, err = run("group", *arguments)
            assert (status, out) == (1, "") and said in err and len(err.splitlines()) == 1
        _, out, _ = run("group", "describe", "busy")
        assert "c7 at " in out and "t-0, t-1" in out
        assert "busy: consumer, Stable" in run("group", "list", "--state", "Stable")[1]


HOSTILE = "\x1b[2Jg\x9b31m\x7f\nforged"
SHOWN = r"\u001b[2Jg\u009b31m\u007f\nforged"


def test_no_name_of_a_client_acts_on_the_terminal(run: Run, server: str) -> None:
    with BlockingConsumer(
        server, group_id=HOSTILE, group_instance_id=HOSTILE, client_id=HOSTILE, auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe(["t"])
        while not consumer.poll(500):
            pass
        for command in (
            ["group", "list"],
            ["group", "describe", HOSTILE],
            ["group", "describe", HOSTILE, "--json"],
            ["status"],
            ["top", "--once", "--groups", "--interval", "0.1"],
            ["group", "delete", HOSTILE, "--yes"],
            ["group", "describe", HOSTILE + "?"],
        ):
            _, out, err = run(*command)
            assert all(line.isprintable() for line in (out + err).split("\n")), command
        assert f"{SHOWN}: consumer, Stable" in run("group", "list")[1]
        assert f"(instance {SHOWN}), {SHOWN} at " in run("group", "describe", HOSTILE)[1]
        found = json.loads(run("group", "describe", HOSTILE, "--json")[1])
        assert found["members"][0]["client_id"] == HOSTILE


def test_no_name_of_a_transaction_acts_on_the_terminal(run: Run, server: str) -> None:
    async def commit() -> None:
        async with Producer(server, transactional_id=HOSTILE) as producer, producer.transaction():
            await producer.send("t", b"x", partition=0)

    trio.run(commit)
    for command in (["transaction", "list"], ["transaction", "describe", HOSTILE]):
        status, out, err = run(*command)
        assert status == 0 and SHOWN in out
        assert all(line.isprintable() for line in (out + err).split("\n")), command


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["group", "delete", "g"], "say --yes to delete group 'g'"),
        (["group", "reset-offsets", "g", "--yes"], "give exactly one of --to-earliest"),
        (["group", "reset-offsets", "g", "--to-latest", "--to-earliest", "--yes"], "give exactly one of"),
        (["group", "reset-offsets", "g", "--to-latest"], "use --dry-run to see"),
        (["group", "reset-offsets", "g", "--to-latest", "--topic", "t:x", "--yes"], "'x' is not a partition"),
        (
            ["group", "reset-offsets", "nothing", "--to-latest", "--yes"],
            "it has committed nothing; name part",
        ),
        (["group", "delete-offsets", "g", "--yes"], "name the topics"),
        (["group", "delete-offsets", "g", "--topic", "t"], "say --yes to forget"),
        (["group", "delete-offsets", "g", "--topic", "t", "--yes"], "has committed nothing of t"),
        (["group", "describe", "nothing"], "GROUP_ID_NOT_FOUND"),
        (["group", "delete", "nothing", "--yes"], "insync group list"),
        (["consume", "t", "--group", "g", "--offset", "3"], "leave out --partition, --offset"),
    ],
)
def test_what_a_wrong_command_should_have_been(run: Run, arguments: list[str], remedy: str) -> None:
    status, out, err = run(*arguments)
    assert status in (1, 2) and out == ""
    assert err.startswith("insync: ") and remedy in err and len(err.splitlines()) == 1
