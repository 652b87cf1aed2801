"""`insync config`: the settings of a topic, shown and changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from .clusters import Json, Servers, known, print_json
from .topic import setting

if TYPE_CHECKING:
    from ..core.types import Value

app = App(name="config", help="Show and change the settings of a topic.", help_format="markdown")


@app.command
def show(name: str, /, *, servers: Servers = "", json: Json = False) -> int:
    """Show all settings of a topic.

    Example: `insync config show orders`
    """
    from .running import run

    async def show_it() -> None:
        from ..client import Admin

        async with Admin(known(servers)) as admin:
            _print(await admin.describe_config(name), json)

    return run(show_it)


@app.command(name="set")
def set_(
    name: str,
    /,
    *values: str,
    reset: Annotated[tuple[str, ...], Parameter(show_default=False)] = (),
    servers: Servers = "",
    json: Json = False,
) -> int:
    """Change settings of a topic; the others stay as they are. Shows all of them afterwards.

    Example: `insync config set orders retention_ms=3600000 min_insync_replicas=2 --reset segment_bytes`

    Parameters
    ----------
    values
        Settings as name=value.
    reset
        A setting that is to be as by default again, repeatable.
    """
    from .running import run

    changes = dict(setting(each) for each in values)

    async def set_them() -> None:
        from ..client import Admin

        async with Admin(known(servers)) as admin:
            await admin.alter_config(name, changes, reset=reset)
            config = await admin.describe_config(name)
        _print(config, json)

    return run(set_them)


def _print(config: dict[str, Value], json: bool) -> None:
    if json:
        print_json(config)
    else:
        for name, value in sorted(config.items()):
            print(f"{name}={value}")
