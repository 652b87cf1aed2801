"""`insync transaction`: transactional ids, what their transactions hold up, and what hangs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from cyclopts import App, Parameter, validators

from .clusters import Json, Servers, known, print_json, say

app = App(
    name="transaction",
    help="List and describe transactions, and abort hanging ones.",
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
            print_json(found)
            return
        for each in found:
            say(f"{each.transactional_id}: {each.status}, producer {each.producer_id}")
        if not found:
            say("no such transactions" if state else "no transactions yet")

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
            print_json(found)
            return
        say(f"{name}: {found.status}, producer {found.producer_id}, epoch {found.producer_epoch}")
        if found.start_ms >= 0:
            begun = datetime.fromtimestamp(found.start_ms / 1000, UTC)
            say(f"  begun {begun:%Y-%m-%d %H:%M:%S} UTC, aborted after {found.timeout_ms} ms")
        for each in found.partitions:
            say(f"  {each.topic}-{each.partition}{_REFUSES if each in found.refused else ''}")

    return run(describe_it)


@app.command(name="find-hanging")
def find_hanging(
    *,
    topic: Annotated[tuple[str, ...], Parameter(show_default=False)] = (),
    longer_than_ms: Annotated[int, Parameter(validator=validators.Number(gte=0))] = 1_200_000,
    servers: Servers = "",
    json: Json = False,
) -> int:
    """Find transactions that are open in a partition and that no coordinator will end.

    Example: `insync transaction find-hanging --topic orders`

    Parameters
    ----------
    topic
        In this topic, repeatable; in all of them if left out.
    longer_than_ms
        Time for which a producer must have written nothing; choose more than `transaction_max_timeout_ms` of the
        nodes.
    """
    from .running import run

    async def find_them() -> None:
        from ..client import Admin

        async with Admin(known(servers)) as admin:
            found = await admin.find_hanging_transactions(list(topic) or None, longer_than_ms=longer_than_ms)
        if json:
            print_json(found)
            return
        for each in found:
            since = datetime.fromtimestamp(each.last_timestamp_ms / 1000, UTC)
            name = f" ({each.transactional_id})" if each.transactional_id else ""
            say(
                f"{each.topic}-{each.partition}: open from offset {each.start_offset} on, producer "
                f"{each.producer_id}{name}, last record {since:%Y-%m-%d %H:%M:%S} UTC"
            )
        if not found:
            say("no transaction hangs")

    return run(find_them)


_REFUSES = " refuses the marker: if it stays so, see `insync transaction find-hanging`"


@app.command
def abort(
    topic: str,
    partition: Annotated[int, Parameter(validator=validators.Number(gte=0))],
    /,
    *,
    start_offset: Annotated[int, Parameter(validator=validators.Number(gte=0))],
    servers: Servers = "",
) -> int:
    """End a transaction that hangs in a partition: its records never count there.

    It is refused while a coordinator holds the transaction: that one ends it by its timeout. If the coordinator has
    decided the outcome, and the partition refuses its marker, the transaction gets that outcome.

    Example: `insync transaction abort orders 3 --start-offset 1042`

    Parameters
    ----------
    topic
        Of which topic.
    partition
        Which partition of the topic.
    start_offset
        Where the transaction begins, as `find-hanging` shows.
    """
    from .running import run

    async def abort_it() -> None:
        from ..client import Admin

        async with Admin(known(servers)) as admin:
            await admin.abort_transaction((topic, partition), start_offset)
        say(f"{topic}-{partition}: the transaction from offset {start_offset} on has ended")

    return run(abort_it)
