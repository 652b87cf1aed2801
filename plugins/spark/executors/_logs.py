"""`ExecutorLogs`: replicated logs inside the executors of a Spark application."""

from __future__ import annotations

import contextlib
import logging
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import attrs

from ....replication.client import BlockingAdmin, BlockingConsumer, BlockingProducer
from ....replication.node import NodeSettings
from ....transport import URL
from .._offsets import Range
from .._session import register
from ..errors import OptionError
from . import _jobs
from ._folders import run_folders
from ._handle import LogsHandle, RangeReader
from ._host import Assignment
from ._jobs import Executor
from ._keeping import Address, Keeper
from ._manager import Manager, Place
from .errors import ExecutorLogsError, TooFewExecutorsError
from .transport import SCHEME

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame, SparkSession

    from ....replication.client import ConsumerRecord

_log = logging.getLogger("insync.spark")

SESSION_TIMEOUT_MS = 2000
"""Longer than that of nodes of their own: an executor shares its cores with tasks."""
_LOOK_SECONDS = 0.1
_MOST_FAILURES = 3
"""Of a node that shall serve for the first time, before that is told."""
_NOTHING_BEGAN = " after {:g} s (start_timeout_ms): their tasks have not begun; are all cores busy?"
_SETTLED_SECONDS = 2.0
"""Where nobody says how many executors there will be: so long no other one has come."""


class ExecutorLogs:
    """Nodes of a cluster in the executors of a Spark application, for as long as the block lasts.

        with ExecutorLogs(spark, replication_factor=3) as logs:
            logs.create_topic("clicks", partitions=6)
            rdd.foreachPartition(logs.write_partition("clicks"))
            logs.read("clicks").count()

    Each executor that is there at the start gets a slot, and with it a node. When an executor is lost its slot goes
    to one that has none: to a spare, or to the one by which Spark replaces it. In a local session, which has one
    executor, all nodes are in one process of it.

    An `ExecutorLogs` that is pickled, in a closure, becomes its `handle`; all of that is offered here as well.

    Args:
      spark: A session, but none of Spark Connect.
      replication_factor: Of topics for which nothing else is said; at least as many nodes there must be.
      nodes: How many slots; by default one for each executor (in a local session `replication_factor`).
      data_dir: Folders on every executor's host for the logs; by default those of `spark.local.dir`, or the
        system's for temporary files.
      keep: Leave the logs, and the metadata beside the driver, when the block is left.
      cpus: What a node takes of its executor's cores. A task takes `spark.task.cpus` of what is left.
      start_timeout_ms: How long executors may take to come, and nodes to serve.
      settings: Further ones of `NodeSettings`, for all nodes.

    Raises (on entering):
      SessionError: The session is one of Spark Connect, or has been stopped.
      TooFewExecutorsError: There are fewer than `replication_factor`, or `nodes`.
      NoRoomError: No task could run beside a node.
      ExecutorLogsError: A node does not serve; it says why.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        replication_factor: int = 3,
        nodes: int | None = None,
        data_dir: str | Path | Sequence[str | Path] | None = None,
        keep: bool = False,
        cpus: float = 0.25,
        start_timeout_ms: int = 120_000,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        if replication_factor < 1:
            raise OptionError(f"replication_factor is {replication_factor}; it must be at least 1")
        if nodes is not None and nodes < replication_factor:
            raise OptionError(f"nodes is {nodes}, which is less than replication_factor={replication_factor}")
        if not 0 < cpus <= 1:
            raise OptionError(f"cpus is {cpus}; it must be above 0, and at most 1")
        if start_timeout_ms < 1:
            raise OptionError(f"start_timeout_ms is {start_timeout_ms}; it must be at least 1")
        unknown = sorted(set(settings or {}) - {each.name for each in attrs.fields(NodeSettings)})
        if unknown:
            raise OptionError(f"settings: a node has no setting {', '.join(unknown)}; see NodeSettings")
        self._spark = spark
        self._context = _jobs.context_of(spark)
        self._replication_factor = replication_factor
        self._wanted = nodes
        self._places = _places(data_dir, self._context.getConf().get("spark.local.dir"))
        self._keep = keep
        self._cpus = cpus
        self._timeout = start_timeout_ms / 1000
        self._settings = {"session_timeout_ms": SESSION_TIMEOUT_MS, **(settings or {})}
        self._secret = secrets.token_hex(32)
        self._run = f"{self._context.applicationId}-{secrets.token_hex(4)}"
        self._changed = threading.Event()
        self._folder: Path | None = None
        self._keeper: Keeper | None = None
        self._manager: Manager | None = None
        self._stop_context: Callable[[], None] | None = None
        self._lock = threading.Lock()

    # The block

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all nodes; what they have written goes with them, unless it is to be kept. May be called again."""
        with self._lock:
            manager, self._manager = self._manager, None
            keeper, self._keeper = self._keeper, None
            stop, self._stop_context = self._stop_context, None
        if stop is not None:
            # The attribute hid the method.
            with contextlib.suppress(AttributeError):
                del self._context.stop
        try:
            if manager is not None:
                manager.close(keep=self._keep)
        finally:
            if keeper is not None:
                keeper.close()

    def _start(self) -> None:
        deadline = time.monotonic() + self._timeout
        found = self._await_executors(deadline)
        local = _jobs.is_local(self._context)
        for executor in found:
            _jobs.check_room(self._context, executor, self._cpus)
        count = self._wanted or (self._replication_factor if local else len(found))
        # Node ids begin at 1, as those of nodes elsewhere do.
        slots = tuple(range(1, count + 1))
        places = [Place(slots)] if local else [Place((slot,)) for slot in slots]
        self._start_keeper()
        self._manager = Manager(
            self._context,
            self._keeper_,
            places,
            self._assignment,
            cpus=self._cpus,
            group=f"insync-{self._run}",
        )
        self._manager.start()
        self._follow_context()
        self._await_nodes(slots, deadline)

    def _start_keeper(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="insync-executor-logs-"))
        conf = self._context.getConf()
        host = conf.get("spark.driver.host") or "127.0.0.1"
        address = Address(bind=conf.get("spark.driver.bindAddress") or host, host=host)
        self._keeper = Keeper(
            address,
            self._changed.set,
            secret=self._secret,
            folder=str(self._folder),
            logs=tuple(map(str, run_folders(self._places, self._run))),
            keep=self._keep,
        )

    def _follow_context(self) -> None:
        """`spark.stop()` ends us first: a node cannot tell a stopped application from a lost executor."""
        stop = self._context.stop

        def stop_logs_first() -> None:
            self.close()
            stop()

        self._stop_context = stop
        self._context.stop = stop_logs_first  # type: ignore[method-assign]

    def _await_executors(self, deadline: float) -> list[Executor]:
        if _jobs.is_local(self._context):
            return _jobs.executors(self._context)
        least = self._wanted or self._replication_factor
        expected = self._expected()
        found: list[Executor] = []
        settled = time.monotonic()
        while time.monotonic() < deadline:
            now = _jobs.executors(self._context)
            if len(now) != len(found):
                found, settled = now, time.monotonic()
            enough = len(found) >= (expected or least)
            if enough and (expected is not None or time.monotonic() - settled >= _SETTLED_SECONDS):
                return found
            time.sleep(_LOOK_SECONDS)
        if len(found) >= least:
            return found
        raise TooFewExecutorsError(
            f"there are {len(found)} executors after {self._timeout:g} s (start_timeout_ms), and replication needs "
            f"{least}: ask for more of them (spark.executor.instances, or workers with free cores and memory), or "
            "for a smaller replication_factor"
        )

    def _expected(self) -> int | None:
        """How many executors there will be, if anybody says so."""
        if self._wanted is not None:
            return self._wanted
        master = self._context.master or ""
        if master.startswith("local-cluster["):
            return int(master.partition("[")[2].partition(",")[0])
        instances = self._context.getConf().get("spark.executor.instances")
        return max(int(instances), self._replication_factor) if instances else None

    def _await_nodes(self, slots: Iterable[int], deadline: float) -> None:
        manager = self._manager
        assert manager is not None
        while not set(slots) <= self._keeper_.nodes.keys():
            if manager.failure is not None:
                raise manager.failure
            hopeless = any(place.failures >= _MOST_FAILURES for place in manager.places)
            if hopeless or time.monotonic() > deadline:
                why = "; ".join(place.failure for place in manager.places if place.failure)
                missing = sorted(set(slots) - self._keeper_.nodes.keys())
                raise ExecutorLogsError(
                    f"nodes {', '.join(map(str, missing))} do not serve"
                    + (f": {why}" if why else _NOTHING_BEGAN.format(self._timeout))
                )
            self._changed.wait(_LOOK_SECONDS)
            self._changed.clear()

    def _assignment(self, place: Place, executor: Executor) -> Assignment:
        return Assignment(
            run=self._run,
            slots=place.slots,
            executor=executor.id,
            host=executor.host,
            directory=self._keeper_.directory,
            store=self._keeper_.store,
            secret=self._secret,
            places=self._places,
            keep=self._keep,
            settings=self._settings,
        )

    @property
    def _keeper_(self) -> Keeper:
        if self._keeper is None:
            raise ExecutorLogsError(
                "these executor logs are not open; use them inside `with ExecutorLogs(...)`"
            )
        return self._keeper

    # What is there

    @property
    def handle(self) -> LogsHandle:
        """The handle that tasks need, to be used in closures."""
        at = URL.parse(self._keeper_.directory).authority
        return LogsHandle(f"{SCHEME}://{at}", self._secret)

    @property
    def nodes(self) -> dict[int, str]:
        """On which executor each node serves, as far as known; a slot that waits for an executor is missing."""
        return {slot: report.executor for slot, report in sorted(self._keeper_.nodes.items())}

    @property
    def metadata_dir(self) -> Path:
        """The folder beside the driver where the metadata stand (`meta.db`); removed at the end unless `keep`."""
        self._keeper_  # noqa: B018 - raises if it is not open
        assert self._folder is not None
        return self._folder

    @property
    def options(self) -> dict[str, str]:
        """Options of the format `insync`: `df.write.format("insync").options(**logs.options)`."""
        return self.handle.options

    def __reduce__(self) -> Any:
        handle = self.handle
        return LogsHandle, (handle.servers, handle.secret)

    # Using it

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> str:
        """Create a topic, by default with a partition for each node; see `Admin.create_topic`."""
        with self.admin() as admin:
            count = partitions or len(self.nodes)
            return admin.create_topic(name, count, replication_factor or self._replication_factor, config)

    def producer(self, **settings: Any) -> BlockingProducer:
        """See `LogsHandle.producer`."""
        return self.handle.producer(**settings)

    def consumer(self, **settings: Any) -> BlockingConsumer:
        """See `LogsHandle.consumer`."""
        return self.handle.consumer(**settings)

    def admin(self, **settings: Any) -> BlockingAdmin:
        """See `LogsHandle.admin`."""
        return self.handle.admin(**settings)

    def write_partition(self, topic: str, **settings: Any) -> Callable[[Iterable[Any]], None]:
        """See `LogsHandle.write_partition`."""
        return self.handle.write_partition(topic, **settings)

    def read(self, topic: str, **options: Any) -> DataFrame:
        """The committed records of a topic, by the format `insync`; options are those of its reader."""
        register(self._spark)
        given = {"subscribe": topic, **self.options, **options}
        return self._spark.read.format("insync").options(**given).load()

    def rdd(self, topic: str) -> RDD[ConsumerRecord]:
        """A topic's records committed by now: a partition for each of the topic's, read beside its leader."""
        with self.admin() as admin, self.consumer() as consumer:
            (found,) = admin.describe_topics([topic])
            partitions = [(topic, each.partition) for each in found.partitions]
            first, last = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
            leaders = {(topic, each.partition): each.leader for each in found.partitions}
        places = {executor.id: executor.location for executor in _jobs.executors(self._context)}
        nodes = self.nodes
        items = [
            (
                Range(topic, number, first[topic, number], last[topic, number]),  # type: ignore[index]
                [places[nodes[leader]]] if (leader := leaders[topic, number]) in nodes else [],
            )
            for _, number in partitions
        ]
        return _jobs.pinned(self._context, items).mapPartitions(RangeReader(self.handle))


def _places(given: str | Path | Sequence[str | Path] | None, local_dir: str | None) -> tuple[str, ...]:
    if given is None:
        return tuple(each.strip() for each in (local_dir or "").split(",") if each.strip())
    return (str(given),) if isinstance(given, str | Path) else tuple(map(str, given))
