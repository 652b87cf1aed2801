"""The committed log of one partition of `__consumer_offsets`, read batch by batch: each is judged as it comes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....core.coordination.shard_events import Entry, Marker, ProducerId
from ....core.groups import record_codec
from ....core.groups import records as r
from ...errors import require
from .decisions import Decisions
from .facts import Written

Records = tuple[tuple[bytes, bytes | None], ...]


class GroupLog(Decisions):
    """One partition."""

    def read_on(
        self,
        records: Mapping[str, Records],
        ends: Mapping[str, tuple[int, bool | None]],
        written: Mapping[str, Written],
    ) -> None:
        """S28: what is committed is what coordinators have written, and nobody else."""
        committed = self.facts.committed
        while self.length < len(committed):
            payload = committed[self.length][1]
            producer_id, outcome = ends.get(payload, (-1, None))
            if outcome is not None:
                self._end(producer_id, outcome)
                continue
            found = records.get(payload)
            require(found is not None, "S28", "{}: no coordinator has written {}", self.facts.name, payload)
            assert found is not None
            if self.length + len(found) > len(committed):
                return
            producer = ProducerId(producer_id, -1) if producer_id >= 0 else None
            self._take(written[payload], [self._decode(*each) for each in found], producer)

    def _decode(self, key: bytes, value: bytes | None) -> tuple[Any, Any]:
        decoded = record_codec.decode_record(key, value)
        require(not isinstance(decoded, record_codec.Unknown), "S28", "{}: {!r}", self.facts.name, key)
        assert not isinstance(decoded, record_codec.Unknown)
        return decoded

    def _end(self, producer_id: int, committed: bool) -> None:
        """Offsets that a producer has committed in a transaction count from its marker on, or never."""
        touched = [key for held, key in self.naive.undecided if held == producer_id]
        self.naive.take(Marker(self.length, ProducerId(producer_id, -1), committed))
        self.length += 1
        for key in touched:
            self._note_offset(key)

    def _take(self, batch: Written, found: list[tuple[Any, Any]], producer: ProducerId | None) -> None:
        at = 0
        for part in batch.parts:
            entries = tuple(found[at : at + part.count])
            self.check_request(batch, part, entries)
            self.note_gone(batch, entries)
            for key, value in entries:
                self.naive.take(Entry(self.length, key, value, producer))
                self.length += 1
                self._note(key, value, is_transactional=producer is not None)
            self.check_state(entries)
            at += part.count

    def _note(self, key: Any, value: Any, *, is_transactional: bool) -> None:
        if isinstance(key, r.OffsetKey):
            if is_transactional:
                self.transactional.add(key)
            else:
                self._note_offset(key)
            if value is None:
                self.expired.add(key)
            else:
                self.marks[value.metadata] += 1
        elif isinstance(key, r.CurrentKey) and value is not None:
            self.given.add((key.group, key.member_id, value.epoch))
