"""Finding the Java that Spark will run on, before Spark fails on it with a stack of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from .errors import JavaError

LEAST_JAVA = 17
"""The class files of Spark 4 are of this version."""

_HOW = (
    f"install Java {LEAST_JAVA} or newer (Debian, Ubuntu: apt install openjdk-17-jre-headless; macOS: "
    "brew install openjdk@17; or https://adoptium.net), and point JAVA_HOME to it if it is not on the PATH"
)
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def check_java(environ: Mapping[str, str] = os.environ) -> int:
    """The major version of the Java that Spark would start: of JAVA_HOME, or else of the PATH.

    Raises:
      JavaError: There is none, it does not run, or it is older than `LEAST_JAVA`. The message says how to get one.
    """
    program = _program(environ)
    try:
        answer = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaError(f"{program} does not run ({error}); {_HOW}") from error
    said = answer.stderr + answer.stdout
    found = _VERSION.search(said)
    if answer.returncode or found is None:
        raise JavaError(f"{program} does not tell its version (it said {said.strip()[:200]!r}); {_HOW}")
    version = int(found[1])
    if version < LEAST_JAVA:
        raise JavaError(f"{program} is Java {version}, which is too old for Spark; {_HOW}")
    return version


def _program(environ: Mapping[str, str]) -> str:
    home = environ.get("JAVA_HOME")
    if home:
        program = Path(home) / "bin" / "java"
        if not program.exists():
            raise JavaError(f"JAVA_HOME is {home}, where there is no bin/java; {_HOW}")
        return str(program)
    found = shutil.which("java", path=environ.get("PATH"))
    if found is None:
        raise JavaError(f"Spark needs Java, and there is none on the PATH; {_HOW}")
    return found
