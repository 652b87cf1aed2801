"""Transactions: which are open and since when, and which hang and hold up who reads what is committed."""

from __future__ import annotations

import time

from markupsafe import Markup

from ....replication.core.wording import counted, first_of
from .._transactions import MOST_DESCRIBED
from .._watcher import Watcher
from ._markup import ago, badge, facts, joined, moment, note, section, table, topic_link

ROWS = 200
PLACES = 30


def transactions(watcher: Watcher) -> Markup:
    """The whole page."""
    known = watcher.transactions
    now = time.time()
    hanging = (
        (
            topic_link(each.topic),
            each.partition,
            f"{each.start_offset:,}",
            each.producer_id,
            each.transactional_id or badge("nobody", "quiet"),
            _when(each.last_timestamp_ms, now),
        )
        for each in known.hanging[:ROWS]
    )
    opened = (
        (
            each.transactional_id,
            _state(each.status),
            each.producer_id,
            each.producer_epoch,
            _when(each.start_ms, now),
            f"{each.timeout_ms / 1000:,.0f} s",
            _places([(at.topic, at.partition) for at in each.partitions]),
        )
        for each in known.open[:ROWS]
    )
    rest = known.open_count - len(known.open)
    listed = ((each.transactional_id, _state(each.status), each.producer_id) for each in known.listed[:ROWS])
    return joined(
        (
            _trouble(known.error, "Transactions"),
            facts(
                ("Transactional ids", f"{len(known.listed):,}"),
                ("Open", f"{known.open_count:,}"),
                ("Hanging", badge(f"{len(known.hanging):,}", "error") if known.hanging else "0"),
            ),
            section(
                "Hanging",
                _trouble(known.hanging_error, "Hanging transactions"),
                table(
                    "Open in a partition, and no coordinator will end them: readers of committed records wait at "
                    "that offset. The page Do ends them.",
                    ("Topic", "Partition", "From offset", "Producer", "Transactional id", "Last record"),
                    hanging,
                    numbers=(1, 2, 3),
                ),
                note(_searched(watcher)),
            ),
            section(
                "Open",
                table(
                    "The oldest first. Their coordinators abort them when their timeout is over.",
                    ("Transactional id", "State", "Producer", "Epoch", "Begun", "Timeout", "Partitions"),
                    opened,
                    numbers=(2, 3, 5),
                ),
                note(
                    f"{counted(rest, 'more is', 'more are', form=',')} open: "
                    f"the first {MOST_DESCRIBED} are asked for."
                )
                if rest > 0
                else "",
            ),
            section(
                "Transactional ids",
                table(
                    f"Those that coordinators remember: {len(known.listed):,}.",
                    ("Transactional id", "State", "Producer"),
                    listed,
                    numbers=(2,),
                ),
            ),
        )
    )


def _searched(watcher: Watcher) -> Markup:
    """When it was looked for what hangs, and what counts as that."""
    what = f"Hanging: its producer has written nothing for {watcher.hangs_after_ms / 60_000:,.0f} minutes."
    if not watcher.transactions.searched_at:
        return Markup("{} The first search has not ended yet.").format(what)
    return Markup("{} Last searched at {}.").format(what, moment(watcher.transactions.searched_at))


def _when(at_ms: int, now: float) -> Markup:
    if at_ms < 0:
        return Markup("unknown")
    return Markup("{} ({})").format(moment(at_ms / 1000), ago(at_ms / 1000, now))


def _state(status: str) -> Markup:
    kind = {"ONGOING": "warning", "EMPTY": "quiet", "COMPLETE_COMMIT": "good", "COMPLETE_ABORT": "good"}
    return badge(status.replace("_", " ").lower() or "unknown", kind.get(status, "warning"))


def _places(places: list[tuple[str, int]]) -> str:
    return first_of([f"{topic}-{number}" for topic, number in sorted(places)], PLACES) or "none"


def _trouble(error: str, what: str) -> Markup:
    if not error:
        return Markup("")
    return Markup('<p class="banner warning" role="status">{} cannot be read: {}</p>').format(what, error)
