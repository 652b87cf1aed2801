"""The `insync` command: its sub-commands are imported when called, its failures are one line on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, entry_points, version

from cyclopts import App, CycloptsError

from .errors import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_USAGE, UsageError, explain, one_line

COMMANDS_GROUP = "insync.commands"

_COMMANDS = {
    "demo": ("demo.command:demo", "Kill a leader under load and check that nothing was lost."),
    "up": ("up:up", "Run a local cluster in the foreground."),
    "node": ("node:node", "Run one node of a cluster."),
    "topic": ("topic:app", "Create, list and describe topics."),
    "produce": ("produce:produce", "Write lines from standard input or a file to a topic."),
    "consume": ("consume:consume", "Print the records of a topic."),
    "status": ("status:status", "Show nodes, controller, lag and under-replicated partitions."),
}

_HELP = """Partitioned, replicated, append-only logs with Kafka's semantics.

Start here: `insync demo` shows a leader die under load and checks that nothing was lost;
`insync up` gives you a cluster of three nodes to try the other commands on.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: the process's own) and return its exit status; never raises."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = build_app()(tokens, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except CycloptsError as error:
        return _complain(f"{one_line(str(error))} (see: insync --help)", EXIT_USAGE)
    except BrokenPipeError:
        return _reader_left()
    except BaseException as failure:  # noqa: BLE001 - the outermost frame: whatever it is becomes one line
        return _fail(failure)
    return status if isinstance(status, int) else 0


def build_app() -> App:
    """The command tree, with what plugins add; nothing but names and help lines is imported yet."""
    app = App(name="insync", help=_HELP, help_format="markdown", version=_version)
    for name, (target, line) in _COMMANDS.items():
        app.command(f"{__package__}.{target}", name=name, help=line)
    for entry in entry_points(group=COMMANDS_GROUP):
        if entry.name in _COMMANDS:
            raise UsageError(
                f"the plugin {entry.value!r} wants the command name {entry.name!r}, which is insync's own: "
                "uninstall the plugin or ask its author to rename the command"
            )
        app.command(entry.value, name=entry.name)
    return app


def _version() -> str:
    try:
        return version("insync")
    except PackageNotFoundError:
        return "not installed (running from the source tree)"


def _fail(failure: BaseException) -> int:
    if isinstance(failure, SystemExit):
        return failure.code if isinstance(failure.code, int) else EXIT_FAILURE
    if os.environ.get("INSYNC_TRACEBACK") == "1":
        sys.excepthook(type(failure), failure, failure.__traceback__)
    message, status = explain(failure)
    return status if status == EXIT_INTERRUPTED else _complain(message, status)


def _complain(message: str, status: int) -> int:
    print(f"insync: {message}", file=sys.stderr)
    return status


def _reader_left() -> int:
    """Whoever read our output has gone (`insync consume ... | head`): no news worth a line."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_FAILURE
