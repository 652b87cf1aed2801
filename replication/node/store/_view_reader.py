"""Reads the metadata store for the machine: what has changed where the store can tell, else all of it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import attrs
import trio

from ... import metadata as store_api
from ...core.control.records import INCARNATIONS_PREFIX
from ...core.control.view import ClusterView
from ...core.faces import Spoilt, Viewing
from ...core.store_transaction import Seen
from ...metadata import Entry, MetadataStore
from . import _store

log = logging.getLogger("insync.node")

PREFIX = "/"

Answer = store_api.Listing | store_api.Delta

PORTION = 200
"""Records that are decoded before the event loop has another turn; some milliseconds."""


@attrs.frozen
class Reading:
    """The store's answer, and the records in it."""

    answer: Answer
    seen: list[Seen]


class ViewReader:
    """Turns what the store tells into views; a record is decoded once for each of its versions."""

    def __init__(self) -> None:
        self._viewing = Viewing()

    async def ask(self, store: MetadataStore) -> Reading:
        """The present state of the store, from where we have read it up to.

        Raises MetadataError.
        """
        return await self.decoded(await self._ask(store))

    async def decoded(self, answer: Answer) -> Reading:
        """An answer with its records."""
        return Reading(answer, await self._fresh(answer.entries))

    async def _ask(self, store: MetadataStore) -> Answer:
        since = self._viewing.revision
        if since is not None:
            changed = await store.changes(PREFIX, since)
            if isinstance(changed, store_api.Delta):
                return changed
        return await store.list(PREFIX)

    def read(self, reading: Reading) -> ClusterView:
        """The view after an answer; it may not be older than the last one."""
        viewing, answer, fresh = self._viewing, reading.answer, reading.seen
        if isinstance(answer, store_api.Delta):
            spoilt = viewing.changed(answer.revision, fresh, answer.deleted)
        else:
            spoilt = viewing.whole(answer.revision, fresh)
        _report(spoilt)
        return viewing.view

    async def _fresh(self, entries: Mapping[str, Entry]) -> list[Seen]:
        """The entries of an answer; an unchanged entry keeps its record object."""
        found: list[Seen] = []
        unknown: dict[str, Entry] = {}
        for key, entry in entries.items():
            if len(unknown) == PORTION:
                found += _store.seen(unknown).values()
                unknown.clear()
                await trio.lowlevel.checkpoint()
            known = self._viewing.known(key)
            if known is not None and (known.value, known.version) == (entry.value, entry.version):
                found.append(known)
            elif not key.startswith(INCARNATIONS_PREFIX):  # which only who registers reads
                unknown[key] = entry
        return [*found, *_store.seen(unknown).values()]


def _report(spoilt: Iterable[Spoilt]) -> None:
    for each in spoilt:
        log.error(
            "%s in the metadata store cannot be read and is %s until it is corrected: %s",
            each.key,
            "treated as unchanged" if each.kept else "left out",
            each.problem,
        )
