"""A process that is a node has as many files open as it may allow itself."""

from __future__ import annotations

import resource
import subprocess
import sys

PROGRAM = """
import resource
from insync.replication.node.process._descriptors import allow_open_files
allow_open_files()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_a_node_process_allows_itself_what_it_may() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = min(hard, 4000) if hard != resource.RLIM_INFINITY else 4000
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        check=True,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, most)),
    )
    assert done.stdout.split() == [str(most)] * 2
