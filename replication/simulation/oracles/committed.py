"""The content of the committed logs of `__consumer_offsets`, read by a naive reader of the oracle's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import attrs

from ...core.groups import record_codec
from ...core.groups import records as r
from ..errors import require
from .facts import PartitionFacts

Records = tuple[tuple[bytes, bytes | None], ...]
NOTHING = r.OffsetValue(offset=-1)
"""The value in place of an offset that is not committed."""


@attrs.define
class Ledger:
    """One partition. `length`: how many committed offsets have been read."""

    facts: PartitionFacts
    length: int = 0
    marks: Counter[str] = attrs.Factory(Counter)
    """How often each commit was written, by the name that its sender gave it as metadata."""
    epochs: set[tuple[str, str, int]] = attrs.Factory(set)
    """Group, member and each epoch that it was ever given."""
    transactional: set[r.OffsetKey] = attrs.Factory(set)
    """Of which offsets were ever committed in a transaction."""
    _undecided: dict[int, dict[r.OffsetKey, tuple[int, r.OffsetValue]]] = attrs.Factory(dict)
    """By producer id: what its open transaction has committed, and the length of the log then."""
    _offsets: dict[r.OffsetKey, list[tuple[int, r.OffsetValue]]] = attrs.Factory(dict)
    """By key: (length of the log, value) at each change."""

    def read_on(self, records: Mapping[str, Records], ends: Mapping[str, tuple[int, bool | None]]) -> None:
        """S28: what is committed is what coordinators have written, and nobody else."""
        committed = self.facts.committed
        while self.length < len(committed):
            payload = committed[self.length][1]
            producer_id, outcome = ends.get(payload, (-1, None))
            if outcome is not None:
                self.length += 1
                self._end(producer_id, outcome)
                continue
            found = records.get(payload)
            require(found is not None, "S28", "{}: no coordinator has written {}", self.facts.name, payload)
            assert found is not None
            if self.length + len(found) > len(committed):
                return
            self.length += len(found)
            for key, value in found:
                self._take(key, value, producer_id)

    def _end(self, producer_id: int, committed: bool) -> None:
        """Offsets that a producer has committed in a transaction count from its marker on, or never."""
        for key, (_, value) in self._undecided.pop(producer_id, {}).items():
            if committed:
                self._offsets.setdefault(key, [(0, NOTHING)]).append((self.length, value))

    def is_open(self, key: r.OffsetKey, since: int) -> bool:
        """Whether an offset has been undecided since the log had that length."""
        return any(held[key][0] <= since for held in self._undecided.values() if key in held)

    def _take(self, key: bytes, value: bytes | None, producer_id: int) -> None:
        decoded = record_codec.decode_record(key, value)
        require(not isinstance(decoded, record_codec.Unknown), "S28", "{}: {!r}", self.facts.name, key)
        assert not isinstance(decoded, record_codec.Unknown)
        place, found = decoded
        if isinstance(place, r.OffsetKey):
            held = NOTHING if found is None else found
            if producer_id >= 0:
                self.transactional.add(place)
                self._undecided.setdefault(producer_id, {})[place] = self.length, held
            else:
                self._offsets.setdefault(place, [(0, NOTHING)]).append((self.length, held))
            if found is not None:
                self.marks[found.metadata] += 1
        elif isinstance(place, r.CurrentKey) and found is not None:
            self.epochs.add((place.group, place.member_id, found.epoch))

    def told_since(self, since: int) -> dict[r.OffsetKey, list[tuple[int, str]]]:
        """Of each key (offset, metadata) at the length `since`, and whatever has come after it."""
        told: dict[r.OffsetKey, list[tuple[int, str]]] = {}
        for key, history in self._offsets.items():
            before = max(at for at, (length, _) in enumerate(history) if length <= since)
            told[key] = [(value.offset, value.metadata) for _, value in history[before:]]
        return told
