"""`insync transaction`: transactional ids, and what their transactions hold up."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import attrs
from cyclopts import App, Parameter

from .clusters import Json, Servers, known, print_json

app = App(
    name="transaction",
    help="List and describe the transactions of producers.",
    help_format="markdown",
)


@app.command(name="list")
def list_(
    *,
    state: Annotated[tuple[str, ...], Parameter(show_default=False)] = (),
    servers: Servers = "",
    json: Json = False,
) -> int:
    """List all transactional ids with their state.

    Example: `insync transaction list --state ONGOING`

    Parameters
    ----------
    state
        Only those in this state, such as ONGOING or PREPARE_COMMIT; repeatable.
    """
    from .running import run

    async def list_them() -> None:
        from ..client import Admin

        async with Admin(known(servers)) as admin:
            found = await admin.list_transactions(list(state) or None)
        if json:
            print_json([attrs.asdict(each) for each in found])
            return
        for each in found:
            print(f"{each.transactional_id}: {each.status}, producer {each.producer_id}")
        if not found:
            print("no such transactions" if state else "no transactions yet")

    return run(list_them)


@app.command
def describe(name: str, /, *, servers: Servers = "", json: Json = False) -> int:
    """Show a transactional id: its producer, its state, and the partitions of its transaction.

    Example: `insync transaction describe etl-1`

    Parameters
    ----------
    name
        Which transactional id.
    """
    from .running import run

    async def describe_it() -> None:
        from ..client import Admin

        async with Admin(known(servers)) as admin:
            found = await admin.describe_transaction(name)
        if json:
            print_json(attrs.asdict(found))
            return
        print(f"{name}: {found.status}, producer {found.producer_id}, epoch {found.producer_epoch}")
        if found.start_ms >= 0:
            begun = datetime.fromtimestamp(found.start_ms / 1000, UTC)
            print(f"  begun {begun:%Y-%m-%d %H:%M:%S} UTC, aborted after {found.timeout_ms} ms")
        for each in found.partitions:
            print(f"  {each.topic}-{each.partition}")

    return run(describe_it)
