"""Do jobs at two clusters, and compare what they were answered."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from typing import Any

import trio

from insync.plugins.kafka.handlers import OFFERED
from insync.plugins.kafka.protocol import message
from insync.plugins.kafka.protocol.apis import Api

from ...plugins.kafka.wire_client import WireClient
from . import groups, settings, topics, transactions
from .allowed import ALLOWED
from .cluster import Cluster
from .job import Job

JOBS: dict[str, Job] = {**topics.JOBS, **settings.JOBS, **groups.JOBS, **transactions.JOBS}

Events = dict[str, Any]
"""By job and title."""
PATIENCE = 240.0
ABSENT = "no such event"
_BREAKS = "ends with"
"""The title of an error that ended a job."""


async def common(ours: str, theirs: str) -> dict[int, int]:
    """The highest version of each API that both offer."""
    offered = []
    for servers in (ours, theirs):
        client = await WireClient.connect(f"kafka://{servers.split(',')[0]}")
        named = message("ApiVersionsRequest")(
            client_software_name="differential", client_software_version="1"
        )
        told = await client.ask(Api.API_VERSIONS, 3, named)
        offered.append({each.api_key: each.max_version for each in told.api_keys})
        await client.stream.aclose()
    here, there = offered
    return {api: min(here[api], there[api]) for api in here.keys() & there.keys() if api in OFFERED.ranges}


async def events(servers: str, versions: Mapping[int, int], jobs: Mapping[str, Job]) -> Events:
    """What jobs were told at a cluster; each has connections of its own."""
    found: Events = {}

    async def do(name: str, job: Job) -> None:
        cluster = Cluster(servers, versions)

        def tell(title: str, value: Any) -> None:
            event = f"{name}: {title}"
            while event in found:
                event += ", again"
            found[event] = value

        try:
            with trio.fail_after(PATIENCE):
                await job(cluster, tell)
        except Exception as error:  # noqa: BLE001 - a job that fails is told of, and the others go on
            traceback.print_exc()
            tell(_BREAKS, repr(error)[:300])
        finally:
            await cluster.aclose()

    async with trio.open_nursery() as nursery:
        for name, job in jobs.items():
            nursery.start_soon(do, name, job)
    return found


def compare(ours: Events, theirs: Events) -> tuple[list[str], set[str]]:
    """What differs though nothing allows it, and what is allowed and was met.

    A job that breaks off is wrong, at both clusters too. Where a difference is allowed, our answer is pinned.
    """
    wrong, met = [], set()
    for event in [*ours, *(theirs.keys() - ours.keys())]:
        here, there = ours.get(event, ABSENT), theirs.get(event, ABSENT)
        if here == there and not event.endswith(f": {_BREAKS}"):
            continue
        allowed = ALLOWED.get(event)
        if allowed is not None and _plain(here) == _plain(allowed.ours):
            met.add(event)
            continue
        known = f", allowed {json.dumps(allowed.ours)[:600]}" if allowed is not None else ""
        wrong.append(f"{event}: ours {json.dumps(here)[:600]}{known}, Kafka's {json.dumps(there)[:600]}")
    return wrong, met


def _plain(told: Any) -> str:
    """An answer as text: tuples are lists there, and fields have no order."""
    return json.dumps(told, sort_keys=True)


async def run(ours: str, theirs: str) -> tuple[int, list[str]]:
    """Do all jobs at two clusters: how many answers were compared, and what is wrong."""
    versions, told = await common(ours, theirs), {}

    async def ask(servers: str) -> None:
        # Elections of all partitions move the coordinators of the other jobs, too.
        first = {name: job for name, job in JOBS.items() if name == topics.ELECTIONS}
        rest = {name: job for name, job in JOBS.items() if name != topics.ELECTIONS}
        told[servers] = await events(servers, versions, first) | await events(servers, versions, rest)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, ours)
        nursery.start_soon(ask, theirs)
    wrong, met = compare(told[ours], told[theirs])
    unmet = sorted(event for event in ALLOWED.keys() - met if ALLOWED[event].always)
    gone = [f"{each}: allowed, and not met any more" for each in unmet]
    return len(told[ours]), wrong + gone
