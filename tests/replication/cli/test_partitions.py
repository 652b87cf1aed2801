"""`insync elect`, `insync reassign` and what `insync topic describe` says of them, on two node processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from insync.replication.cli import main
from insync.replication.cli.topic import _remarks
from tests.processes import STEADY, cluster


@pytest.mark.slow
def test_partitions_are_moved_listed_and_given_back_to_preferred_leaders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(list(arguments))
        out, err = capsys.readouterr()
        return status, out, err

    with cluster(tmp_path, 2, *STEADY) as nodes:
        monkeypatch.setenv("INSYNC_SERVERS", ",".join(node.endpoint for node in nodes))
        assert run("topic", "create", "t", "--partitions", "2", "--replication-factor", "1")[0] == 0
        assert run("reassign") == (0, "nothing is being moved\n", "")
        status, out, _ = run("reassign", "t", "--replicas", "0=2,1", "--replicas", "1=2", "--wait")
        assert (status, out) == (0, "t-0 is to move\nt-1 is to move\n")
        described = json.loads(run("topic", "describe", "t", "--json")[1])["partitions"]
        assert [each["replicas"] for each in described] == [[2, 1], [2]]
        assert described[1]["leader"] == 2
        assert run("elect", "t") == (0, "t-0 is led as asked\nt-1 is led as asked\n", "")
        status, out, _ = run("elect", "t", "--partition", "0", "--partition", "7", "--json")
        assert status == 1
        assert json.loads(out)["t-0"] is None
        assert "UNKNOWN_TOPIC_OR_PARTITION" in json.loads(out)["t-7"]
        status, out, err = run("reassign", "t", "--replicas", "0=1,9")
        assert (status, out) == (1, "")
        assert err.startswith("insync: t-0: INVALID_REPLICA_ASSIGNMENT: node 9 is not alive")
        status, out, err = run("elect", "t", "--partition", "0", "--partition", "7")
        assert (status, out) == (1, "t-0 is led as asked\n")
        assert err.startswith("insync: t-7: UNKNOWN_TOPIC_OR_PARTITION")
        assert run("reassign", "t", "--to-nodes", "1", "--wait")[0] == 1, "two replicas on one node"
        assert run("reassign", "t", "--to-nodes", "2,1", "--wait")[0] == 0
        _, out, _ = run("topic", "describe", "t")
        assert "AR [1, 2]" in out
        assert "AR [2, 1]" in out
        assert "OSR [], ELR []" in out
        status, out, err = run("elect", "t", "--unclean")
        assert (status, out) == (1, "")
        assert err.startswith("insync: t-0: ELECTION_NOT_NEEDED: node 2 leads it in leader epoch ")
        assert run("reassign", "t", "--cancel") == (0, "nothing is being moved\n", "")


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["elect", "--unclean"], "name the topic"),
        (["elect", "--partition", "1"], "insync elect TOPIC"),
        (["reassign", "t", "--replicas", "0"], "PARTITION=NODES"),
        (["reassign", "t", "--replicas", "0=a,b"], "with commas between"),
        (["reassign", "--to-nodes", "1,2"], "name the topic"),
        (["reassign", "t", "--to-nodes", "1,2", "--cancel"], "choose one"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_remedy(
    arguments: list[str], remedy: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INSYNC_SERVERS", "mem://nobody/here")
    assert main(arguments) != 0
    assert remedy in capsys.readouterr().err


def partition(**changed: object) -> dict[str, object]:
    well = {"leader": 1, "elr": [], "last_known_elr": [], "recovering": False, "adding": [], "removing": []}
    return {**well, **changed}


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({}, []),
        ({"leader": -1, "elr": [2, 3]}, ["one of [2, 3]"]),
        ({"leader": -1, "last_known_elr": [2, 3]}, ["all of [2, 3]"]),
        ({"leader": -1}, ["insync elect --unclean"]),
        ({"recovering": True}, ["uncleanly"]),
        ({"adding": [4], "removing": [1]}, ["adding [4], removing [1]"]),
    ],
)
def test_it_is_said_what_is_not_as_it_should_be(state: dict[str, object], said: list[str]) -> None:
    remarks = _remarks(partition(**state))
    assert len(remarks) == len(said)
    assert all(part in remark for part, remark in zip(said, remarks, strict=True))
