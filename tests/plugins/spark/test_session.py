"""The session, the Java that it needs, and the way of the package to executors."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from insync.plugins.spark import JavaError, check_java, make_archive, register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def fake_java(folder: Path, said: str, status: int = 0) -> dict[str, str]:
    program = folder / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit {status}\n")
    program.chmod(0o755)
    return {"JAVA_HOME": str(folder), "PATH": ""}


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "25" 2025-09-16', 25),
        ('java version "21.0.1" 2023-10-17 LTS', 21),
    ],
)
def test_a_java_that_will_do(tmp_path: Path, said: str, version: int) -> None:
    assert check_java(fake_java(tmp_path, said)) == version


@pytest.mark.parametrize(
    ("said", "status", "why"),
    [
        ('java version "1.8.0_412"', 0, "is Java 8, which is too old"),
        ('openjdk version "11.0.2" 2019-01-15', 0, "is Java 11, which is too old"),
        ("Unrecognized VM option", 1, "does not tell its version"),
    ],
)
def test_a_java_that_will_not(tmp_path: Path, said: str, status: int, why: str) -> None:
    with pytest.raises(JavaError, match=why) as caught:
        check_java(fake_java(tmp_path, said, status))
    assert "apt install openjdk-17" in str(caught.value)


def test_no_java_at_all(tmp_path: Path) -> None:
    with pytest.raises(JavaError, match="none on the PATH"):
        check_java({"PATH": str(tmp_path)})
    with pytest.raises(JavaError, match="no bin/java"):
        check_java({"PATH": os.environ["PATH"], "JAVA_HOME": str(tmp_path)})


@pytest.mark.slow
def test_the_archive_is_enough_for_another_interpreter(tmp_path: Path) -> None:
    """One that sees nothing but its own library and what the archive brings."""
    archive = make_archive(tmp_path / "insync.zip")
    with zipfile.ZipFile(archive) as content:
        content.extractall(tmp_path / "lib")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from insync.storage.batch import crc32c\n"
        "from insync.transport import *\n"
        "from insync.replication import Consumer\n"
        "from importlib.metadata import entry_points\n"
        "import insync.plugins.spark\n"
        "assert [point.load() for point in entry_points(group='insync.transports')]\n"
        "print(crc32c(b'123456789'))"
    )
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(tmp_path / "lib")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout.strip() == str(0xE3069283), result.stderr


def test_a_session_knows_the_format(spark: SparkSession) -> None:
    register(spark)
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.range(10).count() == 10


def test_the_log_says_what_went_wrong_without_stacks_of_java(spark: SparkSession) -> None:
    """What the session's JVM was started with is a file that is there, and its layout leaves out frames alone."""
    options = spark.conf.get("spark.driver.extraJavaOptions").split()
    (file,) = [each.partition("=file://")[2] for each in options if "log4j2.configurationFile" in each]
    assert "-XX:+UseSerialGC" in options
    java = spark._jvm.java
    found = java.util.Properties()
    found.load(java.io.FileInputStream(file))
    log4j = spark._jvm.org.apache.logging.log4j
    layout = (
        log4j.core.layout.PatternLayout.newBuilder()
        .withPattern(found.getProperty("appender.console.layout.pattern"))
        .withAlwaysWriteExceptions(False)
        .build()
    )
    cause = java.lang.RuntimeException("the cause")
    event = (
        log4j.core.impl.Log4jLogEvent.newBuilder()
        .setLevel(log4j.Level.ERROR)
        .setLoggerName("org.spark.Query")
        .setMessage(log4j.message.SimpleMessage("failed"))
        .setThrown(java.lang.IllegalStateException('what is wrong\n  File "job.py", line 1', cause))
        .build()
    )
    said = layout.toSerializable(event)
    assert "ERROR Query: failed\n" in said
    assert 'what is wrong\n  File "job.py", line 1\n' in said and "the cause\n" in said
    assert "\tat " not in said and " more\n" not in said
