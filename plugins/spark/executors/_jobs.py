"""Two things without an API in PySpark: which executors there are, and where a partition of an RDD is to run.

Both go through the JVM gateway of a classic session; Spark Connect has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from ._host import DRIVER
from .errors import NoRoomError, SessionError

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")


@attrs.frozen
class Executor:
    """An executor that is alive; `host` is where it is reached."""

    id: str
    host: str
    cores: int

    @property
    def location(self) -> str:
        """As Spark's scheduler takes it for the preferred place of a task."""
        return f"executor_{self.host}_{self.id}"


def context_of(spark: SparkSession) -> SparkContext:
    """The context of a classic session.

    Raises:
      SessionError: It is a session of Spark Connect, or has been stopped.
    """
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise SessionError(
            "ExecutorLogs does not work over Spark Connect, whose clients cannot reach executors: run the "
            "driver on the cluster (spark-submit, or a session with its master), or use nodes beside Spark "
            "(`insync node`)"
        )
    context = spark.sparkContext
    if is_stopped(context):
        raise SessionError("the Spark session has been stopped; make another one")
    return context


def is_stopped(context: SparkContext) -> bool:
    jsc: Any = context._jsc
    return jsc is None or bool(jsc.sc().isStopped())


def is_local(context: SparkContext) -> bool:
    """Whether driver and executor are one process: there is one executor, called `driver`."""
    return bool(context._jsc.sc().isLocal())


def executors(context: SparkContext) -> list[Executor]:
    """Those that are alive, in the order of their ids; the driver is none of them unless the session is local."""
    found: list[Executor] = []
    local = is_local(context)
    each = context._jsc.sc().statusStore().executorList(True).iterator()
    while each.hasNext():
        summary = each.next()
        if (summary.id() == DRIVER) == local:
            found.append(Executor(summary.id(), summary.hostPort().rpartition(":")[0], summary.totalCores()))
    return sorted(found, key=lambda executor: (len(executor.id), executor.id))


def check_room(context: SparkContext, executor: Executor, cpus: float) -> None:
    """Raise NoRoomError if no task could run beside a node.

    A local session counts whole tasks only.
    """
    task = float(context.getConf().get("spark.task.cpus", "1") or 1)
    taken = task if is_local(context) else cpus
    # The core count of local[*] and its like is told by the executor itself.
    if executor.cores and executor.cores < taken + task:
        raise NoRoomError(
            f"executor {executor.id} has {executor.cores} cores, of which a node takes {taken:g}, and a task needs "
            f"{task:g} (spark.task.cpus): give executors one more core"
            + (", as in local[2]" if is_local(context) else f", or set spark.task.cpus to {1 - cpus:g}")
        )


def pinned(context: SparkContext, items: Sequence[tuple[T, Sequence[str]]]) -> RDD[T]:
    """An RDD of these objects, one in each partition, with the locations where it should be computed.

    `SparkContext.makeRDD` of Scala with preferred locations, over pickled objects.
    """
    from pyspark.core.rdd import RDD
    from pyspark.serializers import CPickleSerializer

    jvm: Any = context._jvm
    serializer = CPickleSerializer()
    pairs = jvm.java.util.ArrayList()
    for item, locations in items:
        listed = jvm.java.util.ArrayList()
        for location in locations:
            listed.add(location)
        pickled = bytearray(serializer.dumps(item))
        pairs.add(jvm.scala.Tuple2(pickled, jvm.PythonUtils.toSeq(listed)))
    tags = getattr(getattr(jvm.scala.reflect, "ClassTag$"), "MODULE$")
    of_bytes = tags.apply(jvm.java.lang.Class.forName("[B"))
    made = context._jsc.sc().makeRDD(jvm.PythonUtils.toSeq(pairs), of_bytes)
    return RDD(made.toJavaRDD(), context, serializer)


def run_pinned(
    context: SparkContext,
    item: T,
    executor: Executor,
    work: Callable[[Iterable[T]], Iterator[R]],
    *,
    cpus: float,
    group: str,
    name: str,
) -> R:
    """Run `work` on one item in a task that takes `cpus` of the executor; its one result.

    It may come to run elsewhere: `work` checks that. Raises what PySpark raises for a job that fails.
    """
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

    context.setJobGroup(group, name, interruptOnCancel=True)
    rdd = pinned(context, [(item, [executor.location])])
    dynamic = (context.getConf().get("spark.dynamicAllocation.enabled") or "false").lower() == "true"
    # With dynamic allocation other resources mean other executors.
    if not is_local(context) and not dynamic:
        rdd = rdd.withResources(ResourceProfileBuilder().require(TaskResourceRequests().cpus(cpus)).build)
    (result,) = rdd.mapPartitions(work).collect()
    return result
