"""A Spark session that has all that the plugin needs, by one call."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ._archive import archive_settings, make_archive
from ._java import check_java
from .errors import SparkMissingError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = "insync"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_ALREADY = "DATA_SOURCE_ALREADY_EXISTS"


def check_pyspark() -> None:
    """Raise SparkMissingError if PySpark, or a library that it needs for this plugin, cannot be imported."""
    try:
        import pyarrow  # noqa: F401
        import pyspark
    except ImportError as error:
        raise SparkMissingError(
            f"{error.name} is not installed; pip install 'insync[spark]' brings all that the Spark plugin needs"
        ) from error
    if tuple(int(part) for part in pyspark.__version__.split(".")[:2]) < (4, 2):
        raise SparkMissingError(f"pyspark {pyspark.__version__} is too old; pip install 'insync[spark]'")


def session(
    master: str = "local[*]",
    *,
    app_name: str = "insync",
    config: Mapping[str, str] | None = None,
    ship: bool | None = None,
) -> SparkSession:
    """A session (or the one that runs already) that knows the format `insync`.

    Spark's own defaults, but: Python workers are this very interpreter, all binds to loopback and there is no web
    UI as long as `master` is local, times are shown in UTC, filters go to the source, and the log on standard error
    is without stacks of Java (unless SPARK_HOME or SPARK_CONF_DIR is set).

    Args:
      master: `local[*]`, or a cluster's URL (`spark://host:7077`).
      app_name: What the cluster shows.
      config: Further settings of Spark; they win.
      ship: Take this package and its libraries to the executors in an archive; by default unless `master` is local.

    Raises:
      SparkMissingError: PySpark is not installed.
      JavaError: There is no Java that it can run on.
    """
    check_pyspark()
    check_java()
    from pyspark.sql import SparkSession

    local = master.startswith("local[") or master == "local"
    settings = _defaults(local)
    running = SparkSession.getActiveSession()
    if running is None and (not local if ship is None else ship):
        place = tempfile.TemporaryDirectory(prefix="insync-spark-")
        _ARCHIVES.append(place)
        settings |= archive_settings(make_archive(Path(place.name) / "insync.zip"))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName(app_name)
    settings |= config or {}
    if running is None:
        # What a JVM was started with cannot be changed, and is not to look as if it had been.
        settings |= _without_stacks(settings)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


_ARCHIVES: list[tempfile.TemporaryDirectory[str]] = []
"""Removed when this process ends: executors may ask for them as long as it lives."""


def _defaults(local: bool) -> dict[str, str]:
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "true",
    }
    if local:
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "4",
        }
    return settings


def _without_stacks(config: Mapping[str, str]) -> dict[str, str]:
    """By what the driver's JVM logs errors without stacks of Java, unless somebody has set up its log."""
    if "SPARK_CONF_DIR" in os.environ or "SPARK_HOME" in os.environ:
        return {}
    file = Path(__file__).with_name("log4j2.properties").as_uri()
    given = config.get(_JAVA_OPTIONS, "")
    return {_JAVA_OPTIONS: f"-Dlog4j2.configurationFile={file} {given}".rstrip()}


def register(spark: SparkSession) -> None:
    """Make the format `insync` known to a session; one that found it by itself stays as it is."""
    from pyspark.errors import AnalysisException

    from ._format import InsyncDataSource

    try:
        spark.dataSource.register(InsyncDataSource)
    except AnalysisException as error:
        if error.getCondition() != _ALREADY:
            raise
