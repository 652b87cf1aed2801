"""Listeners in processes that are killed at the worst moment: what is lost (nothing), and what comes again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path
from threading import Lock
from typing import Any

import attrs
import pytest

from insync.replication import BlockingAdmin, BlockingConsumer, BlockingNode, BlockingProducer
from insync.replication.core.types import PartitionId
from tests.replication.node.test_cluster import settings
from tests.tiers import uses

from . import killed_worker

COUNT = 12
POLLED = 4
"""Records that a partition has at hand: what BATCH commits at a time."""
KILLED = -9
PATIENCE = 120


@attrs.frozen(kw_only=True)
class Case:
    """A listener, when it dies, and what its successor is given again of the topic `t`: None: not said here."""

    name: str
    die: tuple[str, int]
    again: list[int] | None
    options: dict[str, Any] = attrs.Factory(dict)
    face: str = "trio"
    poison: tuple[str, ...] = ()
    until: int = COUNT


def _mode(
    mode: str, die: tuple[str, int], again: list[int] | None, face: str = "trio", **options: Any
) -> Case:
    name = f"{mode}-{die[0]}-{face}"
    return Case(name=name, die=die, again=again, face=face, options={"ack_mode": mode, **options})


_FAILING = {"retries": 1, "retry_backoff_ms": 1, "ack_mode": "RECORD"}
_ONCE = {"transactional_id_prefix": "?", "retries": 0}
CASES = [
    # Handled and not committed; committed and nothing else done; in the middle of a handler.
    _mode("RECORD", ("before-commit", 6), [5]),
    _mode("RECORD", ("after-commit", 6), []),
    _mode("RECORD", ("in-handler", 6), [], "asyncio"),
    _mode("RECORD", ("before-commit", 6), [5], "threads"),
    _mode("BATCH", ("before-commit", 2), [4, 5, 6, 7]),
    _mode("BATCH", ("after-commit", 2), [], "asyncio"),
    _mode("BATCH", ("in-handler", 7), [4, 5], "threads"),
    _mode("TIME", ("before-commit", 1), None, ack_time_ms=1),
    _mode("TIME", ("in-handler", 7), [0, 1, 2, 3, 4, 5], ack_time_ms=100_000),
    _mode("COUNT", ("before-commit", 2), [3, 4, 5], ack_count=3),
    _mode("COUNT", ("after-commit", 2), [], "asyncio", ack_count=3),
    _mode("COUNT_TIME", ("before-commit", 2), [3, 4, 5], ack_count=3, ack_time_ms=100_000),
    _mode("MANUAL", ("before-commit", 2), [4, 5, 6, 7]),
    _mode("MANUAL_IMMEDIATE", ("before-commit", 6), [5], "asyncio"),
    _mode("MANUAL_IMMEDIATE", ("after-commit", 6), [], "threads"),
    # Retries in place, retry topics, dead letters, skip, stop; value 4 is the one that fails.
    Case(
        name="retry",
        die=("in-pause", 1),
        again=[],
        options=_FAILING | {"on_failure": "skip"},
        poison=("4",),
        until=11,
    ),
    Case(
        name="skip",
        die=("before-commit", 5),
        again=[],
        options=_FAILING | {"on_failure": "skip"},
        poison=("4",),
        until=11,
    ),
    Case(name="stop", die=("at-stop", 1), again=[], options=_FAILING, poison=("4",)),
    Case(
        name="retry-topic",
        die=("after-forward", 1),
        again=[],
        options=_FAILING | {"retry_topics": {"again": 1}},
        poison=("4",),
    ),
    Case(
        name="dead-before",
        die=("before-forward", 1),
        again=[],
        options=_FAILING | {"dead_letter": "dead"},
        poison=("4",),
        until=11,
    ),
    Case(
        name="dead-after",
        die=("after-forward", 1),
        again=[],
        options=_FAILING | {"dead_letter": "dead"},
        poison=("4",),
        until=11,
    ),
    # Exactly once: nothing of a transaction that was not committed counts.
    Case(name="once-handler", die=("in-handler", 7), again=[4, 5], options=_ONCE),
    Case(name="once-before", die=("before-end", 2), again=[4, 5, 6, 7], options=_ONCE, face="asyncio"),
    Case(name="once-after", die=("after-end", 2), again=[], options=_ONCE, face="threads"),
    Case(
        name="once-dead",
        die=("after-forward", 1),
        again=[],
        options=_ONCE | {"dead_letter": "dead"},
        poison=("4",),
        until=11,
    ),
]


@attrs.define
class Life:
    """What one process noted."""

    began: list[tuple[str, int, str]] = attrs.Factory(list)
    handled: list[tuple[str, int, str]] = attrs.Factory(list)
    committed: int = 0
    """Of the topic `t`."""

    @classmethod
    def read(cls, log: Path) -> Life:
        life = cls()
        for line in log.read_text().splitlines():
            what, topic, _, offset, *value = line.split()
            if what == "committed":
                life.committed = int(offset) if topic == "t" else life.committed
            else:
                getattr(life, what).append((topic, int(offset), value[0]))
        return life

    def of_t(self) -> list[int]:
        return [offset for topic, offset, _ in self.handled if topic == "t"]


@attrs.define
class Told:
    """Two lives of one listener, one after the other, and what topics hold then."""

    first: Life
    second: Life
    between: int | None
    """What the group had committed when the first was dead."""
    committed: int | None
    out: list[bytes]
    letters: int
    retried: int


class Lives:
    """Runs all cases, some at a time; each test looks at its own."""

    def __init__(self, servers: str, folder: Path) -> None:
        self._servers = servers
        self._folder = folder
        # Forked of a process that has imported everything: what is tested begins at once.
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload([killed_worker.__name__])
        # Each start asks how all other processes ended. Two threads that ask about one at once read its one answer
        # together, and the second takes the empty pipe for exit code 255.
        self._asking = Lock()
        with ThreadPoolExecutor(max(2, os.cpu_count() or 2)) as pool:
            self.told = dict(zip([case.name for case in CASES], pool.map(self._live, CASES), strict=True))

    def _live(self, case: Case) -> Told | BaseException:
        try:
            return self._both(case)
        except Exception as error:  # noqa: BLE001 - it is the outcome of this case alone
            return error

    def _both(self, case: Case) -> Told:
        first, code = self._run(case, "first", case.die, [])
        assert code == KILLED, f"it lived on, or died of something else: {code}"
        between = self._committed(case)
        done = [value for _, offset, value in first.handled if offset < (between or 0)]
        # The second one may do without its poison, so that what waits in a retry topic is handled in the end.
        poison = () if case.options.get("retry_topics") else case.poison
        second, code = self._run(case, "second", ("never", 1), done, poison)
        assert code == 0 or case.name == "stop", code
        letters = [each for each in self._read("dead", case) if each.value == b"4"]
        return Told(
            first,
            second,
            between,
            self._committed(case),
            [each.value for each in self._read("out", case)],
            len(letters),
            sum(topic == "again" for topic, _, _ in second.handled),
        )

    def _run(
        self,
        case: Case,
        name: str,
        die: tuple[str, int],
        done: list[str],
        poison: tuple[str, ...] | None = None,
    ) -> tuple[Life, int | None]:
        log = self._folder / f"{case.name}-{name}.log"
        log.touch()
        options = {key: case.name if value == "?" else value for key, value in case.options.items()}
        facts = {
            "servers": self._servers,
            "group": case.name,
            "face": case.face,
            "options": {**options, "max_poll_records": POLLED},
            "log": str(log),
            "poison": case.poison if poison is None else poison,
            "until": case.until,
            "die": die,
            "done": done,
        }
        process = self._context.Process(target=killed_worker.live, args=(facts,), daemon=True)
        with self._asking:
            process.start()
        if not wait([process.sentinel], PATIENCE):
            process.kill()
            wait([process.sentinel])
        with self._asking:
            process.join()
            code = process.exitcode
            process.close()
        return Life.read(log), code

    def _committed(self, case: Case) -> int | None:
        with BlockingAdmin(self._servers) as admin:
            return admin.group_offsets(case.name).get(PartitionId("t", 0))

    def _read(self, topic: str, case: Case) -> list[Any]:
        """What readers of committed records find there, of this case.

        Up to the end of the log: its last transactions, and those of other cases before them, may still be open.
        """
        with BlockingConsumer(self._servers) as everything:
            end = everything.end_offsets([(topic, 0)])[PartitionId(topic, 0)]
        options = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
        with BlockingConsumer(self._servers, **options) as consumer:
            consumer.assign([(topic, 0)])
            found: list[Any] = []
            while (consumer.position((topic, 0)) or 0) < end:
                found += consumer.poll(500)
        return [each for each in found if topic == "dead" or each.key == case.name.encode()]


@pytest.fixture(scope="module")
@uses("slow")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lives]:
    folder = tmp_path_factory.mktemp("killed")
    with BlockingNode(settings(folder, 1, session_timeout_ms=60_000)) as node:
        servers = ",".join(node.endpoints)
        with BlockingAdmin(servers) as admin, BlockingProducer(servers) as producer:
            for topic in ("t", "again", "dead", "out"):
                admin.create_topic(topic, 1, 1)
            for n in range(COUNT):
                producer.send_and_wait("t", b"%d" % n)
        yield Lives(servers, folder)


@pytest.fixture(params=CASES, ids=[case.name for case in CASES])
def case(request: pytest.FixtureRequest) -> Case:
    chosen: Case = request.param
    return chosen


@pytest.mark.xdist_group("killed listeners")
def test_nothing_is_lost_and_little_comes_again(lives: Lives, case: Case) -> None:
    told = lives.told[case.name]
    if isinstance(told, BaseException):
        raise told
    first, second = told.first.of_t(), told.second.of_t()
    assert first == sorted(set(first)) and second == sorted(set(second)), "in order, each life once"
    poison = {int(value) for value in case.poison}
    if case.name != "stop":
        assert set(first) | set(second) | poison == set(range(COUNT)), "nothing is lost"
        assert told.committed == COUNT
    if case.again is not None:
        assert sorted(set(first) & set(second)) == case.again
    # What was told as committed is; and nothing is committed that was not done.
    assert told.first.committed <= (told.between or 0) <= max([*first, *poison], default=-1) + 1


def _told(lives: Lives, name: str) -> Told:
    told = lives.told[name]
    if isinstance(told, BaseException):
        raise told
    return told


@pytest.mark.xdist_group("killed listeners")
def test_a_record_that_waits_for_its_next_attempt_is_tried_again(lives: Lives) -> None:
    told = _told(lives, "retry")
    tries = (
        [value for _, _, value in told.first.began].count("4"),
        [v for _, _, v in told.second.began].count("4"),
    )
    assert tries == (1, 2)


@pytest.mark.xdist_group("killed listeners")
def test_a_listener_that_ends_by_a_failure_is_given_the_record_again(lives: Lives) -> None:
    told = _told(lives, "stop")
    assert told.between == told.committed == 4
    assert [value for _, _, value in told.second.began] == ["4", "4"]


@pytest.mark.xdist_group("killed listeners")
def test_a_record_that_went_to_a_retry_topic_is_handled_from_there(lives: Lives) -> None:
    told = _told(lives, "retry-topic")
    assert told.retried >= 1
    assert 4 in told.second.of_t(), "its offset was not committed when it was there: it comes by both ways"


@pytest.mark.xdist_group("killed listeners")
def test_a_dead_letter_is_written_before_its_offset_is_committed(lives: Lives) -> None:
    assert _told(lives, "dead-before").letters >= 1
    assert _told(lives, "dead-after").letters >= 1


@pytest.mark.xdist_group("killed listeners")
@pytest.mark.parametrize("name", ["once-handler", "once-before", "once-after", "once-dead"])
def test_in_transactions_everything_counts_once(lives: Lives, name: str) -> None:
    expected = [b"%d" % n for n in range(COUNT)]
    if name == "once-dead":
        expected.remove(b"4")
    assert sorted(_told(lives, name).out, key=int) == expected
