"""`insync stray`: the logs that a node set aside: list, restore and delete them."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import App

from ..core.wording import counted
from .clusters import Flag, Json, print_json, say
from .errors import CommandError, UsageError

if TYPE_CHECKING:
    from ...storage import Stray

app = App(
    name="stray",
    help="List, restore or delete the logs that a node set aside because it could not use them.",
    help_format="markdown",
)


@app.command(name="list")
def list_(*folders: Path, json: Json = False) -> int:
    """Show the stray logs in data folders, with their sizes, ages and reasons.

    The node may be running. It deletes a stray log when `stray_retention_ms` is over.

    Example: `insync stray list data/node-1`

    Parameters
    ----------
    folders
        Data folders (log directories) of nodes.
    """
    found = [stray for folder in _given(folders) for stray in _strays(folder)]
    if json:
        print_json([_told(stray) for stray in found])
        return 0
    for stray in found:
        since = _since(stray) or "at an unknown time"
        say(f"{stray.path}: {counted(stray.size_bytes, 'byte')}, set aside {since}: {stray.why}")
    if not found:
        say("no stray logs")
    return 0


@app.command
def restore(stray: Path, /, *, trust_name: Flag = False, json: Json = False) -> int:
    """Put a stray log back in its place and recover it as after a crash. The node must not be running.

    A log that has taken the place meanwhile becomes a stray log itself. At its next start the node uses the
    restored log if the metadata store has its topic. If the store has forgotten the topic, run
    `insync store repair` first. If the partition has no leader then, run `insync elect --unclean`.

    Example: `insync stray restore data/node-1/orders-0.0123456789abcdef0123456789abcdef-stray`

    Parameters
    ----------
    stray
        The folder of the stray log, as `insync stray list` shows it.
    trust_name
        Take the log for one of the topic that has its name now, whatever topic id its partition.metadata names.
    """
    from ...storage import LogDirectory, read_identity

    wanted = _named(stray)
    cluster_id, node_id, _ = read_identity(wanted.path.parent)
    directory = LogDirectory(wanted.path.parent, cluster_id=cluster_id, node_id=node_id)
    try:
        replaced = directory.set_aside(
            wanted.key, f"{wanted.path.name} was restored", round(1000 * time.time())
        )
        log = directory.restore(wanted, trust_name=trust_name)
        log.flush()
        directory.write_checkpoints({})
    finally:
        # As `insync log recover`: a recovery cannot earn the marker of a clean stop, but may leave it.
        directory.close(directory.was_clean, broker_epoch=directory.previous_broker_epoch)
    place = wanted.path.with_name(f"{wanted.topic}-{wanted.partition}")
    start, end = log.log_start_offset, log.log_end_offset
    if json:
        told = {"topic": wanted.topic, "partition": wanted.partition, "path": str(place)}
        aside = str(replaced.path) if replaced is not None else None
        print_json(told | {"log_start_offset": start, "log_end_offset": end, "replaced": aside})
    else:
        say(f"{place} is restored, offsets {start} to {end}")
        if replaced is not None:
            say(f"the log that was in its place is {replaced.path}")
    return 0


@app.command
def delete(*strays: Path, json: Json = False) -> int:
    """Delete stray logs for good. The node may be running.

    Example: `insync stray delete data/node-1/orders-0.0123456789abcdef0123456789abcdef-stray`

    Parameters
    ----------
    strays
        Folders of stray logs, as `insync stray list` shows them.
    """
    from ...storage import remove_stray

    if not strays:
        raise UsageError("name the folders of the stray logs to delete; `insync stray list` shows them")
    for wanted in [_named(path) for path in strays]:
        remove_stray(wanted)
        if json:
            print_json(_told(wanted))
        else:
            say(f"{wanted.path} is deleted, {counted(wanted.size_bytes, 'byte')}")
    return 0


def _given(folders: tuple[Path, ...]) -> tuple[Path, ...]:
    if not folders:
        raise UsageError("name the data folder of a node, such as data/node-1; there may be several")
    return folders


def _strays(folder: Path) -> list[Stray]:
    from ...storage import find_strays, read_identity

    read_identity(folder)  # an error that says so if it is no data folder
    return find_strays(folder)


def _named(path: Path) -> Stray:
    for stray in _strays(path.parent):
        if stray.path.name == path.name:
            return stray
    raise CommandError(
        f"{path} is not a stray log: `insync stray list {path.parent}` shows those that there are"
    )


def _since(stray: Stray) -> str | None:
    if stray.since_ms is None:
        return None
    return datetime.fromtimestamp(stray.since_ms / 1000, UTC).isoformat(timespec="seconds")


def _told(stray: Stray) -> dict[str, Any]:
    return {
        "path": str(stray.path),
        "topic": stray.topic,
        "partition": stray.partition,
        "size_bytes": stray.size_bytes,
        "set_aside": _since(stray),
        "why": stray.why,
    }
