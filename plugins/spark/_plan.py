"""Whether a plan gives the same rows in the same order whenever one of its tasks is run again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ._session import FORMAT
from .errors import ConnectError, NotRepeatableError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter
    from pyspark.sql.streaming import DataStreamWriter

_REPEATABLE = {
    *(
        "Project",
        "Filter",
        "Generate",
        "Union",
        "SubqueryAlias",
        "View",
        "ResolvedHint",
        "EventTimeWatermark",
    ),
    *("DataSourceV2Relation", "DataSourceV2ScanRelation", "LogicalRelation", "LocalRelation", "Range"),
    *("StreamingRelation", "StreamingRelationV2", "StreamingDataSourceV2Relation", "OneRowRelation"),
    *("MapInArrow", "MapInPandas", "PythonMapInArrow", "PythonDataSource", "UnresolvedDataSource"),
}
"""Operators that work row by row within a partition, and sources whose partitions are read again as they were.

All that moves rows between partitions gives them in the order in which they happen to arrive.
"""


def check_repeatable(frame: DataFrame) -> None:
    """Raise NotRepeatableError, naming the operator, if rows or their order may differ in a second run.

    So with shuffles (joins, aggregates, sorts, repartition), limits, samples, and functions that are not
    deterministic. Raises ConnectError over Spark Connect, which shows no plan.
    """
    from pyspark.errors import PySparkAttributeError

    try:
        plan = frame._jdf.queryExecution().analyzed()
    except PySparkAttributeError as error:
        raise ConnectError(
            "exactly_once looks at the plan in the driver's JVM, which a session of Spark Connect does not show; "
            "write any plan by exactly_once(df, transactional=True), or, if you know that the plan gives the same "
            "rows in the same order each time, set the options exactlyOnce='true' and repeatablePlan='true' "
            "yourself"
        ) from error
    for node in _nodes(plan):
        name = node.getClass().getSimpleName()
        if name not in _REPEATABLE:
            raise NotRepeatableError(
                f"the plan has {name}: when a task is run again its rows may come in another order; write the "
                "result where it keeps its order first (Parquet, a topic) and copy that with exactlyOnce, or write "
                "without it"
            )
        if not node.deterministic():
            raise NotRepeatableError(
                f"the plan has a function in {name} that is not deterministic (such as rand() or uuid()): when a "
                "task is run again its rows may differ; write the result to a table first, or without exactlyOnce"
            )


def _nodes(plan: Any) -> Iterator[Any]:
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        yield node
        children = node.children()
        waiting += [children.apply(n) for n in range(children.size())]


def exactly_once(frame: DataFrame, *, transactional: bool = False) -> DataFrameWriter | DataStreamWriter:
    """`frame.write` or `frame.writeStream` for the format `insync`, with exactlyOnce; the rest is as ever.

    Args:
      transactional: All rows of a job, or of a batch of a stream, in one transaction, which one task writes. Any
        plan will do, and readers with `read_committed` see all of it or nothing.

    Raises:
      NotRepeatableError: The plan may give other rows, or another order, when a task is run again.
      ConnectError: This is Spark Connect, and not `transactional`.
    """
    if transactional:
        frame, options = frame.repartition(1), {"transactional": "true"}
    else:
        check_repeatable(frame)
        options = {"exactlyOnce": "true", "repeatablePlan": "true"}
    if frame.isStreaming:
        return frame.writeStream.format(FORMAT).options(**options)
    return frame.write.format(FORMAT).mode("append").options(**options)
