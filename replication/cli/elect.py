"""`insync elect`: moves leaderships back to the preferred replicas, or elects uncleanly."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter, validators

from .clusters import Flag, Json, Servers, known, print_json, say
from .errors import EXIT_FAILURE, UsageError, one_line

if TYPE_CHECKING:
    from ..client import Admin
    from ..client.errors import ServerError


NO_WORDS: Mapping[tuple[str, int], str] = MappingProxyType({})


def elect(
    topic: str = "",
    /,
    *,
    partition: Annotated[
        tuple[int, ...], Parameter(show_default=False, validator=validators.Number(gte=0))
    ] = (),
    unclean: Flag = False,
    servers: Servers = "",
    json: Json = False,
) -> int:
    """Elect leaders: the preferred replicas, or with --unclean the most complete living ones.

    Example: `insync elect orders --partition 0 --unclean`

    Parameters
    ----------
    topic
        Of which topic; of all topics if left out (not with --unclean).
    partition
        Which partitions of the topic, repeatable; all of them if left out.
    unclean
        For partitions without a leader, elect the living replica with the most complete log. Records that it lacks
        are lost, acknowledged ones among them.
    """
    from .running import run

    if partition and not topic:
        raise UsageError("--partition says little without a topic: insync elect TOPIC --partition 0")
    if unclean and not topic:
        raise UsageError("name the topic that may lose records: insync elect TOPIC --unclean")
    failed = False

    async def elect_them() -> None:
        nonlocal failed
        from ..client import Admin, ElectionNotNeededError

        async with Admin(known(servers)) as admin:
            named = [(topic, each) for each in partition] or await _all_of(admin, topic)
            outcomes = await admin.elect_leaders(named, unclean=unclean)
        failed = all(outcomes.values()) or any(
            error is not None and not isinstance(error, ElectionNotNeededError) for error in outcomes.values()
        )
        print_outcomes(outcomes, "is led as asked", json, outcomes.words)

    status = run(elect_them)
    return EXIT_FAILURE if failed else status


async def _all_of(admin: Admin, topic: str) -> list[tuple[str, int]]:
    found = await admin.describe_topics([topic] if topic else None)
    return [(info.name, each.partition) for info in found for each in info.partitions]


def print_outcomes(
    outcomes: Mapping[tuple[str, int], ServerError | None],
    success: str,
    as_json: bool,
    words: Mapping[tuple[str, int], str] = NO_WORDS,
) -> None:
    """A line for each partition: done (in `words`, if there are any), or (on standard error) why not."""
    if as_json:
        print_json({f"{t}-{p}": None if error is None else str(error) for (t, p), error in outcomes.items()})
        return
    for (topic, partition), error in sorted(outcomes.items(), key=lambda each: each[0]):
        if error is None:
            said = words.get((topic, partition))
            say(f"{topic}-{partition}: {one_line(said)}" if said else f"{topic}-{partition} {success}")
        else:
            say(f"insync: {one_line(str(error))}", to=sys.stderr)
