"""The status of a listener."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ..core.types import PartitionId


@attrs.frozen(kw_only=True)
class PartitionStatus:
    """One partition that a listener has.

    position: The offset of the next record to be handled; None: not known yet.
    committed: What this listener has committed last; None: nothing yet.
    high_watermark: As of the last answer of its leader; -1 before the first.
    in_hand: Records that were read and are not done.
    attempts: How often the record at hand has failed.
    busy_for: Seconds for which a handler has been at work; 0: none is.
    is_paused: Whether `pause` holds it.
    """

    position: int | None
    committed: int | None
    high_watermark: int
    in_hand: int
    attempts: int
    busy_for: float
    is_paused: bool

    @property
    def lag(self) -> int:
        """Records that are committed to the partition and not done, as far as is known."""
        return 0 if self.position is None else max(0, self.high_watermark - self.position)


@attrs.frozen(kw_only=True)
class ListenerStatus:
    """A listener, and the partitions that it has. The numbers count since `run` began.

    state: "new", "starting", "running", "stopping" or "stopped".
    handled: Records that handlers have done.
    failures: Attempts that have failed.
    retried: Records that went to a retry topic.
    dead_letters: Records that went to the dead letter topic.
    skipped: Records that were given up.
    commit_failures: Commits that did not come through.
    """

    state: str
    partitions: Mapping[PartitionId, PartitionStatus]
    handled: int
    failures: int
    retried: int
    dead_letters: int
    skipped: int
    commit_failures: int

    @property
    def lag(self) -> int:
        """Of all its partitions."""
        return sum(each.lag for each in self.partitions.values())

    def metrics(self, group: str) -> str:
        """For Prometheus, in its text format."""
        lines = []
        for name in ("handled", "failures", "retried", "dead_letters", "skipped", "commit_failures"):
            lines.append(f"# TYPE insync_listener_{name}_total counter")
            lines.append(f"insync_listener_{name}_total{{group={_quoted(group)}}} {getattr(self, name)}")
        for name in ("lag", "in_hand", "attempts", "busy_for"):
            metric = "insync_listener_busy_seconds" if name == "busy_for" else f"insync_listener_{name}"
            lines.append(f"# TYPE {metric} gauge")
            for at, partition in sorted(self.partitions.items()):
                labels = f'group={_quoted(group)},topic={_quoted(at.topic)},partition="{at.partition}"'
                lines.append(f"{metric}{{{labels}}} {getattr(partition, name):g}")
        return "\n".join([*lines, ""])


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
