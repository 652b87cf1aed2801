"""`insync plugins`: the plugins that are installed here, and whether each can be loaded."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from importlib.metadata import EntryPoint, entry_points

import attrs

from .._places import place_of
from .clusters import Flag, Json, print_json, say
from .errors import EXIT_FAILURE, one_line

_LONGEST_REASON = 500


@attrs.frozen
class _Found:
    """An entry point. loads: None if nobody looked. why_not: one line, empty if it loads."""

    group: str
    name: str
    object: str
    distribution: str
    version: str
    loads: bool | None
    why_not: str


def plugins(*, names: Flag = False, json: Json = False) -> int:
    """Show the installed plugins of all kinds, and whether each loads; if not, the reason.

    The exit status is 1 if one does not load. insync's own plugins are among them; what is built in is not.

    Example: `insync plugins --names`

    Parameters
    ----------
    names
        Import none of them, and do not say whether they load.
    """
    found = [
        _looked_at(point, None if names else check)
        for group, check in groups().items()
        for point in sorted(entry_points(group=group), key=lambda each: (each.name, each.value))
    ]
    if json:
        print_json(found)
    else:
        _show(found)
    return EXIT_FAILURE if any(each.loads is False for each in found) else 0


def groups() -> Mapping[str, Callable[[EntryPoint], object]]:
    """The groups of entry points, each with what its users do until they have the plugin."""
    from ...transport import registry as transports
    from ..client._assignors import find_assignors
    from ..core.groups.assignors import names as assignors
    from ..metadata import registry as stores
    from ..node import _policies as policies
    from ..node.gateways import gateways
    from . import app
    from .demo import report as demo

    return {
        transports.GROUP: lambda point: transports.get(point.name),
        stores.ENTRY_POINT_GROUP: lambda point: stores.load_factory(point.name),
        gateways.GROUP: lambda point: gateways.get(point.name),
        assignors.ENTRY_POINT_GROUP: lambda point: find_assignors(point.name),
        policies.GROUP: _callable,
        app.COMMANDS_GROUP: _command,
        demo.STEPS_GROUP: _callable,
    }


def _callable(point: EntryPoint) -> None:
    if not callable(loaded := point.load()):
        raise TypeError(f"{point.value} is {loaded!r}, which cannot be called")


def _command(point: EntryPoint) -> None:
    from .app import check_name

    check_name(point)
    _callable(point)


def _looked_at(point: EntryPoint, check: Callable[[EntryPoint], object] | None) -> _Found:
    loads, why_not = None, ""
    if check is not None:
        try:
            # A module may print as it is imported: no line of this command's.
            with redirect_stdout(sys.stderr):
                check(point)
            loads = True
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever somebody else's code does
            loads, why_not = False, _reason(error)
    dist = point.dist
    return _Found(
        point.group,
        point.name,
        point.value,
        dist.name if dist is not None else "",
        dist.version if dist is not None else "",
        loads,
        why_not,
    )


def _reason(error: BaseException) -> str:
    said = one_line(f"{type(error).__name__}: {error}{place_of(error.__cause__ or error)}")
    return said if len(said) <= _LONGEST_REASON else f"{said[:_LONGEST_REASON]}..."


def _show(found: list[_Found]) -> None:
    lines = [(each.group, each.name, f"{each.distribution} {each.version}".strip()) for each in found]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line, each in zip(lines, found, strict=True):
        told = {None: "", True: "loads", False: f"does not load: {each.why_not}"}[each.loads]
        columns = (text.ljust(width) for text, width in zip(line, widths, strict=True))
        say("  ".join((*columns, told)).rstrip())
    if not found:
        say("no plugins")
