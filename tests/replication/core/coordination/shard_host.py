"""What tests of coordinators share: one partition of an internal topic, on a log in memory."""

from __future__ import annotations

from typing import Any

from insync.replication.core.coordination import shard_effects as fx
from insync.replication.core.coordination import shard_events as ev
from insync.replication.core.coordination.shard import Shard
from insync.replication.core.errors import ErrorCode

WALL = 1_700_000_000_000


class ShardHost:
    """Hosts a shard whose writes reach the log at once.

    `commits`: whether what is written is committed at once. `refuse`: the error of every write, if there is one.
    A subclass calls `lead` once it has made all that its shard may ask for.
    """

    def __init__(self, shard: Shard, view: Any) -> None:
        self.shard = shard
        self.view = view
        self.now = 1000.0
        self.log: list[ev.Entry | ev.Marker] = []
        self.batches: list[tuple[tuple[Any, Any], ...]] = []
        self.said: dict[int, Any] = {}
        self.noted: list[fx.Noted] = []
        self.commits = True
        self.refuse: ErrorCode | None = None
        self.ids = 0
        self.epoch = 0

    def lead(self) -> None:
        """Lead (again): read the log, and serve."""
        self.epoch += 1
        self.tell(ev.ViewChanged(view=self.view))
        self.tell(ev.ShardLed(leader_epoch=self.epoch, log_start=0, epoch_start=len(self.log)))
        if self.log:
            read = ev.LogRead(leader_epoch=self.epoch, entries=tuple(self.log), next_offset=len(self.log))
            self.tell(read)
        self.commit()
        self.tell(ev.Contacted(since=self.now))

    @property
    def wall(self) -> int:
        return WALL + int(self.now * 1000)

    def tell(self, event: ev.Event) -> None:
        outward = []
        for effect in self.shard.step(event, self.now, self.wall):
            match effect:
                case fx.Write(write_id=write_id) if self.refuse is not None:
                    self.tell(ev.Refused(write_id=write_id, error=self.refuse))
                case fx.Write(write_id=write_id, entries=entries, producer=producer):
                    base = len(self.log)
                    self.batches.append(entries)
                    self.log += [
                        ev.Entry(base + at, key, value, producer) for at, (key, value) in enumerate(entries)
                    ]
                    self.tell(ev.Accepted(write_id=write_id, base_offset=base))
                    if self.commits:
                        self.commit()
                case fx.Answer(request_id=request_id, reply=reply):
                    assert request_id not in self.said, "answered twice"
                    self.said[request_id] = reply
                case fx.Noted():
                    self.noted.append(effect)
                case fx.Outward():
                    outward.append(effect)
        for effect in outward:
            self.obey(effect)

    def obey(self, effect: fx.Outward) -> None:
        """Do what a machine wants done outside of its log."""
        raise AssertionError(f"nobody is here for {effect.message}")

    def commit(self) -> None:
        self.tell(ev.Advanced(high_watermark=len(self.log)))

    def send(self, message: Any, within: float = 60.0) -> int:
        """Ask; `said` has the answer under the number that this returns, when there is one."""
        self.ids += 1
        asked = self.ids
        self.tell(ev.Ask(request_id=asked, message=message, deadline=self.now + within))
        self.tell(ev.Contacted(since=self.now))
        return asked

    def ask(self, message: Any) -> Any:
        """The answer, which must be there at once."""
        return self.said[self.send(message)]

    def pass_time(self, seconds: float) -> None:
        """Tick at each deadline on the way."""
        end = self.now + seconds
        while (due := self.shard.deadline) is not None and due <= end:
            self.now = max(self.now, due)
            self.tell(ev.Contacted(since=self.now))
            self.tell(ev.Tick())
        self.now = end
