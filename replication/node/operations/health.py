"""Whether a node is well: what has to hold, and what is wrong where it does not.

Alive is a process whose event loop answers. Ready is one for which every check below holds: then another node may
be restarted without any partition losing more than it can bear.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import trio

from ...core.messages import DescribeNodeResponse, HealthCheck, LogDirectoryInfo
from ...core.types import PartitionId
from ...core.wording import counted, first_of

if TYPE_CHECKING:
    from ..driver import Driver
    from ..store._cluster_state import ClusterState

NAMED = 5
"""How many partitions a check names; of the others it tells the number."""


class Health:
    """Reads the state of one node; nothing is kept."""

    def __init__(self, driver: Driver, state: ClusterState) -> None:
        self._driver = driver
        self._state = state
        self._started = trio.current_time()

    @property
    def ready(self) -> bool:
        return all(check.ok for check in self.checks())

    def checks(self) -> list[HealthCheck]:
        """Every check, in the order in which one should look at them."""
        return [
            self._session(),
            self._store(),
            self._controller(),
            self._log_directories(),
            self._logs(),
            self._maintenance(),
            self._min_isr(),
            self._in_sync(),
        ]

    def describe(self) -> DescribeNodeResponse:
        controller = self._driver.view.controller
        return DescribeNodeResponse(
            node_id=self._driver.settings.node_id,
            incarnation=self._driver.incarnation,
            uptime_ms=int(1000 * (trio.current_time() - self._started)),
            controller_id=controller.node_id if controller is not None else -1,
            checks=self.checks(),
            log_directories=self.log_directories(),
            counters=self._driver.counters.as_dict(),
            version=_version(),
        )

    def log_directories(self) -> list[LogDirectoryInfo]:
        """All that are configured, those that could not be used at the start among them."""
        directories = self._driver.directories
        infos = [
            LogDirectoryInfo(
                path=str(home.path),
                error=home.failure,
                partitions=len(home.partitions),
                size_bytes=sum(map(self._size, list(home.partitions))) if not home.failure else 0,
                free_bytes=home.flusher.free_bytes,
                device=home.flusher.device,
                stray_logs=len(home.strays),
                stray_bytes=sum(each.size_bytes for each in home.strays),
            )
            for home in directories
        ]
        return infos + [
            LogDirectoryInfo(path=str(path), error=why) for path, why in directories.unusable.items()
        ]

    def _size(self, partition: PartitionId) -> int:
        host = self._driver.hosts.get(partition)
        return host.log.size_bytes if host is not None and host.log is not None else 0

    def _session(self) -> HealthCheck:
        me = self._driver.view.nodes.get(self._driver.settings.node_id)
        problem = ""
        if self._state.session.expired.is_set():
            problem = (
                "the session in the metadata store has expired; the node registers again as soon as it can"
            )
        elif me is None or me.incarnation != self._driver.incarnation:
            problem = "the node is not registered in the metadata store"
        elif me.leaving or self._state.leaving:
            problem = "the node is about to stop"
        return _check("session", problem, "registered in the metadata store")

    def _store(self) -> HealthCheck:
        """Without store writes no leader is elected and no ISR shrinks: writes may wait for a silent replica."""
        problems = [trouble] if (trouble := self._state.store_trouble) else []
        if unreadable := self._driver.view.unreadable:
            left = "the previous values stand, if there are any, and are not changed; restore the right ones"
            named = first_of(sorted(unreadable), NAMED)
            number = counted(len(unreadable), "record")
            problems.append(f"{number} in the metadata store cannot be read: {named} ({left})")
        return _check("store", "; ".join(problems), "takes writes")

    def _controller(self) -> HealthCheck:
        view = self._driver.view
        if view.controller is None or view.controller.node_id not in view.nodes:
            return _check(
                "controller", "there is no controller: no leader is elected and no topic changed", ""
            )
        return _check("controller", "", f"node {view.controller.node_id}")

    def _log_directories(self) -> HealthCheck:
        infos = self.log_directories()
        offline = [f"{info.path} is offline: {info.error}" for info in infos if info.error]
        return _check("log_directories", "; ".join(offline), f"{len(infos)} in use")

    def _logs(self) -> HealthCheck:
        """Replicas that can neither lead nor follow."""
        hosts = self._driver.hosts
        shut = [partition for partition, host in hosts.items() if host.replica.failure]
        return _check("logs", _named(shut, "cannot be used here"), f"{len(hosts)} open")

    def _maintenance(self) -> HealthCheck:
        """Partitions whose retention or compaction does not do all of its work."""
        troubles = self._driver.directories.troubles
        problems = [
            _named(troubles.failing, "whose retention or compaction fails"),
            _named(troubles.damaged, "led here from damaged logs, because no sound replica exists"),
            _named(troubles.unreadable, "with unreadable record batches"),
            troubles.clocks.problem,
        ]
        elsewhere = map(troubles.clocks.other_problem, sorted(troubles.clocks.wrong))
        well = "; ".join(["retention and compaction work", *elsewhere])
        return _check("maintenance", "; ".join(filter(None, problems)), well)

    def _min_isr(self) -> HealthCheck:
        """Partitions that are led here and take no acks=all write."""
        led, under = 0, []
        for partition, host in self._driver.hosts.items():
            leader = host.replica.leader
            if leader is not None:
                led += 1
                if len(leader.record.isr) < leader.record.min_isr:
                    under.append(partition)
        return _check(
            "min_isr",
            _named(under, "led here under min_insync_replicas"),
            f"{counted(led, 'partition')} led here",
        )

    def _in_sync(self) -> HealthCheck:
        """Partitions without this node in the ISR, for which it is no help if another node fails."""
        me = self._driver.settings.node_id
        mine = [each.record for each in self._driver.view.partitions.values() if me in each.record.replicas]
        out = [record.id for record in mine if me not in record.isr]
        return _check("in_sync", _named(out, "without this node in the ISR"), f"in {len(mine)} ISRs")


@cache
def _version() -> str:
    """Of the package that this process runs; empty from a source tree that is not installed."""
    try:
        return version("insync")
    except PackageNotFoundError:
        return ""


def _check(name: str, problem: str, detail: str) -> HealthCheck:
    return HealthCheck(name=name, ok=not problem, detail=problem or detail)


def _named(partitions: Iterable[PartitionId], what: str) -> str:
    found = sorted(partitions)
    return f"{counted(len(found), 'partition')} {what}: {first_of(found, NAMED)}" if found else ""
