"""The descriptors of a process that is a node and nothing else."""

from __future__ import annotations

import logging
import resource

log = logging.getLogger("insync.node")


def allow_open_files() -> None:
    """Let this process have as many files open as it may allow itself; for the main program of a process.

    A node has a segment or more open for each partition that is in use. Many systems begin a process with 1,024
    descriptors, of which it may have half a million, because programs that call `select` cannot use more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        log.warning("the process may open no more than %d files: %s", soft, error)
