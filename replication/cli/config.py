"""`insync config`: the settings of a topic, shown and changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

from cyclopts import App, Parameter

from .clusters import Json, Servers, known, print_json, say
from .errors import UsageError
from .topic import setting

if TYPE_CHECKING:
    from ..client.admin._operations import EntityType
    from ..core.types import Value

app = App(
    name="config",
    help="Show and change the settings of a topic, and the limits of clients and nodes.",
    help_format="markdown",
)


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
        A setting to reset to its default, repeatable.
    """
    from .running import run

    changes = dict(setting(each) for each in values)
    if not changes and not reset:
        raise UsageError(f"say what to set: insync config set {name} retention_ms=3600000")

    async def set_them() -> None:
        from ..client import Admin

        async with Admin(known(servers)) as admin:
            await admin.alter_config(name, changes, reset=reset)
            config = await admin.describe_config(name)
        _print(config, json)

    return run(set_them)


@app.command
def quotas(*, servers: Servers = "", json: Json = False) -> int:
    """Show the limits of clients and nodes.

    Example: `insync config quotas`
    """
    from .running import run

    async def show_them() -> None:
        from ..client import Admin

        async with Admin(known(servers)) as admin:
            found = await admin.describe_quotas()
        if json:
            print_json({_named(each.entity_type, each.name): each.limits for each in found})
        elif not found:
            say("no limits are set; see: insync config quota --help")
        for each in found if not json else ():
            limits = " ".join(f"{name}={value}" for name, value in each.limits.items())
            say(f"{_named(each.entity_type, each.name)}: {limits}")

    return run(show_them)


@app.command
def quota(
    entity: str,
    /,
    *values: str,
    remove: Annotated[tuple[str, ...], Parameter(show_default=False)] = (),
    servers: Servers = "",
    json: Json = False,
) -> int:
    """Limit what a client, or a move of partitions, takes of each node; at once and without a restart.

    A client that takes more is answered late, and told for how long to pause; nothing is dropped.

    Example: `insync config quota client_id/etl producer_byte_rate=1000000 consumer_byte_rate=5000000`

    Parameters
    ----------
    entity
        client_id/NAME (what a client calls itself), user/NAME (whom its certificate names) or node/ID; without a
        name the default of all that have no limit of their own.
    values
        Limits as name=value, bytes a second: producer_byte_rate and consumer_byte_rate of clients,
        leader_replication_throttled_rate and follower_replication_throttled_rate of nodes.
    remove
        A limit to remove, repeatable.
    """
    from .running import run

    entity_type, _, name = entity.partition("/")
    limits = dict(map(_limit, values))
    if not limits and not remove:
        raise UsageError(f"say what to limit: insync config quota {entity} producer_byte_rate=1000000")

    async def set_it() -> None:
        from ..client import Admin

        async with Admin(known(servers)) as admin:
            now = await admin.alter_quotas(cast("EntityType", entity_type), name, limits, remove=remove)
        if json:
            print_json(now)
        else:
            shown = " ".join(f"{limit}={value}" for limit, value in now.items()) or "no limits"
            say(f"{entity}: {shown}")

    return run(set_it)


def _named(entity_type: str, name: str) -> str:
    return f"{entity_type}/{name}" if name else entity_type


def _limit(text: str) -> tuple[str, int]:
    name, value = setting(text)
    try:
        return name, int(value)
    except ValueError:
        raise UsageError(f"{text}: a limit is a whole number of bytes a second") from None


def _print(config: dict[str, Value], json: bool) -> None:
    if json:
        print_json(config)
    else:
        for name, value in sorted(config.items()):
            say(f"{name}={value}")
