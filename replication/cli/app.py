"""The `insync` command: its sub-commands are imported when called, its failures are one line on stderr."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version

from cyclopts import App, CycloptsError, Parameter

from .errors import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_USAGE, UsageError, explain, leaves, one_line

COMMANDS_GROUP = "insync.commands"

_COMMANDS = {
    "demo": "demo.command:demo",
    "up": "local.up:up",
    "node": "node:node",
    "store": "store:app",
    "adopt": "adopt:adopt",
    "topic": "topic:app",
    "group": "group:app",
    "transaction": "transaction:app",
    "user": "user:app",
    "config": "config:app",
    "elect": "elect:elect",
    "reassign": "reassign:reassign",
    "drain": "reassign:drain",
    "produce": "produce:produce",
    "consume": "consume:consume",
    "status": "watching.status:status",
    "health": "watching.health:health",
    "top": "watching.top:top",
    "log-dirs": "watching.log_dirs:log_dirs",
    "bench": "bench:app",
    "simulate": "simulate:simulate",
    "log": "log:app",
    "stray": "stray:app",
    "plugins": "plugins:plugins",
}

_HELP = """Partitioned, replicated, append-only logs with Kafka's semantics.

Start here: `insync demo` shows a leader die under load and checks that nothing was lost;
`insync up` gives you a cluster of three nodes to try the other commands on.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: the process's own) and return its exit status; never raises."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    try:
        overview = not tokens or tokens[0] in ("--help", "-h")
        app = build_app(with_help=overview, with_plugins=tokens[:1] != ["plugins"])
        if overview:
            _load_help(app)
        status = app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except CycloptsError as error:
        command = " ".join(("insync", *(error.command_chain or ()), "--help"))
        return _complain(f"{one_line(str(error))} (see: {command})", EXIT_USAGE)
    except BaseException as failure:  # noqa: BLE001 - the outermost frame: whatever it is becomes one line
        if all(isinstance(each, BrokenPipeError) for each in leaves(failure)):  # trio has it in a group
            return _reader_left()
        return _fail(failure)
    return status if isinstance(status, int) else 0


def build_app(*, with_help: bool = False, with_plugins: bool = True) -> App:
    """The command tree, with what plugins add; nothing but their names is known yet, but for `with_help`."""
    app = App(
        name="insync",
        help=_HELP,
        help_format="markdown",
        version=_version,
        default_parameter=Parameter(negative=()),
    )
    for order, (name, target) in enumerate(_COMMANDS.items()):
        app.command(f"{__package__}.{target}", name=name, sort_key=order)
    added = entry_points(group=COMMANDS_GROUP) if with_plugins else ()
    for entry in {each.name: each for each in added}.values():
        check_name(entry)
        origin = f"(plugin of {entry.dist.name})" if entry.dist else "(plugin)"
        # Unless it is for the overview, a command says itself what it is for.
        said = {"help": f"{_plugin_help(entry)} {origin}"} if with_help else {}
        app.command(entry.value, name=entry.name, **said)
    return app


def check_name(entry: EntryPoint) -> None:
    """Raises `UsageError` if the command of a plugin has the name of one of ours, or of another plugin's."""
    if entry.name in _COMMANDS:
        raise UsageError(
            f"the plugin {entry.value!r} wants the command name {entry.name!r}, which is insync's own: "
            "uninstall the plugin or ask its author to rename the command"
        )
    offers = [each for each in entry_points(group=COMMANDS_GROUP) if each.name == entry.name]
    if len({each.value for each in offers}) > 1:
        named = ", ".join(f"{each.dist.name if each.dist else 'a plugin'} ({each.value})" for each in offers)
        raise UsageError(
            f"several distributions offer the command {entry.name!r}: {named}; uninstall all but one"
        )


def _plugin_help(entry: EntryPoint) -> str:
    """The first line of what a plugin says of its command; a plugin that is broken must not break the overview."""
    try:
        command = entry.load()
    except Exception as error:  # noqa: BLE001 - whatever a plugin of somebody else does when it is imported
        return f"Cannot be loaded: {one_line(str(error))}"
    said = command.help if isinstance(command, App) else inspect.getdoc(command)
    return (said or "").partition("\n")[0]


def _load_help(app: App) -> None:
    """Import our own commands, for the first line of each one's docstring to stand in the overview."""
    for name in _COMMANDS:
        app[name]


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
    """The reader of our output has gone (`insync consume ... | head`): no news worth a line."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_FAILURE
