"""L11: a member that lags leaves the ISR; told from what it asked for, without the leader's own bookkeeping."""

from __future__ import annotations

from collections import deque

import attrs

from ...core.partition import events as ev
from ...core.partition.leader import LeaderRole
from ..errors import require
from ..settings import LAG_MAX
from ..world.node import Host


@attrs.define(eq=False)
class _Watch:
    """One leader. `ends`: where its log ended, and since when; `had`: up to where each follower was."""

    role: LeaderRole
    ends: deque[tuple[float, int]] = attrs.Factory(deque)
    had: dict[int, int] = attrs.Factory(dict)
    member_since: dict[int, float] = attrs.Factory(dict)


class Laggards:
    """Of every replica that leads."""

    def __init__(self) -> None:
        self._watches: dict[str, _Watch] = {}

    def fetched(self, host: Host, follower: int, offset: int) -> None:
        """A follower has everything below `offset`, as its leader accepts."""
        watch = self._watch(host)
        if watch is not None:
            watch.had[follower] = max(offset, watch.had.get(follower, -1))

    def after(self, host: Host, event: ev.Event | ev.Fetch) -> None:
        """A leader has made a step."""
        if isinstance(event, ev.Appended):
            watch = self._watch(host)
            if watch is not None:
                assert host.replica is not None
                watch.ends.append((host.replica.now, host.replica.log.log_end_offset))

    def _watch(self, host: Host) -> _Watch | None:
        replica = host.replica
        if replica is None or replica.leader is None:
            return None
        watch = self._watches.get(host.name)
        if watch is None or watch.role is not replica.leader:
            watch = self._watches[host.name] = _Watch(replica.leader)
            watch.ends.append((replica.now, replica.log.log_end_offset))
        return watch

    def ticked(self, host: Host) -> None:
        """Time has passed: a leader has to have looked who lags."""
        replica, watch = host.replica, self._watch(host)
        if replica is None or watch is None:
            return
        isr, ends, now = watch.role.record.isr, watch.ends, replica.now
        since = {node: watch.member_since.get(node, now) for node in isr if node != host.node.id}
        watch.member_since = since
        while len(ends) > 1 and now - ends[1][0] > LAG_MAX:
            ends.popleft()
        if now - ends[0][0] <= LAG_MAX or watch.role.change.pending is not None:
            return
        for member, joined in since.items():
            had = watch.had.get(member, -1)
            lags = had < ends[0][1] and now - joined > LAG_MAX
            require(
                not lags,
                "L11",
                "{} keeps {}, which is at {}, and ended at {} {:g} s ago",
                host.name,
                member,
                had,
                ends[0][1],
                LAG_MAX,
            )
