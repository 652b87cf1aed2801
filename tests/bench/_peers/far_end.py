"""The far end of a benchmark: a process of its own, ended by its id."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def far_process(module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Runs a module of the benchmarks until its standard input ends; gives the line that says that it is ready.

    environment: beside what this process has.
    """
    with subprocess.Popen(
        [sys.executable, "-m", f"tests.bench.{module}", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    ) as process:
        try:
            assert process.stdout is not None and process.stdin is not None
            yield process.stdout.readline().strip()
            process.stdin.close()
            process.wait(5)
        finally:
            process.kill()
