"""What members of a group have written down, and whether it keeps what a group promises."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import attrs

_FOREVER = float("inf")


@attrs.frozen
class Span:
    """One member has a partition, from the end of `assigned` to the begin of `revoked` or `lost`, or to its end.

    evicted: it ended with `lost` in the classic protocol, in which a member learns late that it was put out.
    """

    member: str
    partition: int
    since: float
    until: float
    evicted: bool = False


@attrs.frozen
class Handed:
    """Records [first, end) of a partition, given by a poll that began at `since` and was over at `at`."""

    member: str
    partition: int
    first: int
    end: int
    since: float
    at: float


@attrs.frozen
class Commit:
    """What an onlooker was told that the group has committed, at the latest at `at`."""

    partition: int
    offset: int
    at: float


@attrs.define
class GroupHistory:
    """All members of a run together."""

    spans: list[Span] = attrs.Factory(list)
    handed: list[Handed] = attrs.Factory(list)
    done: list[Handed] = attrs.Factory(list)
    commits: list[Commit] = attrs.Factory(list)
    callbacks: Counter[str] = attrs.Factory(Counter)
    errors: Counter[str] = attrs.Factory(Counter)

    def read(self, member: str, file: Path, ended: float = _FOREVER) -> None:
        """Take in one member's file; its process ended at `ended`. A last line that was cut is none."""
        open_since: dict[int, float] = {}
        classic = False
        for line in file.read_text().splitlines() if file.exists() else ():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            what, at = event["what"], event["at"]
            match what:
                case "began":
                    classic = bool(event.get("classic"))
                case "assigned":
                    self.callbacks[what] += 1
                    open_since.update(dict.fromkeys(event["partitions"], at))
                case "revoked" | "lost":
                    self.callbacks[what] += 1
                    for partition in event["partitions"]:
                        since = open_since.pop(partition, None)
                        if since is not None:
                            evicted = classic and what == "lost"
                            self.spans.append(Span(member, partition, since, at, evicted))
                case "handed" | "done":
                    found = self.handed if what == "handed" else self.done
                    found += [
                        Handed(member, int(partition), first, end, event.get("since", at), at)
                        for partition, (first, end) in event["records"].items()
                    ]
                case "error":
                    self.errors[event["said"].partition(":")[0]] += 1
        self.spans += [Span(member, partition, since, ended) for partition, since in open_since.items()]


@attrs.frozen
class GroupVerdict:
    """violations: sentences. processed: records that somebody is through with. repeated: those more than once."""

    violations: list[str]
    processed: int
    repeated: int


def judge_group(history: GroupHistory, ends: Mapping[int, int]) -> GroupVerdict:
    """ends: how many records each partition has, all of them acknowledged or read by others."""
    violations = [
        *_outside_of_spans(history),
        *_two_owners(history),
        *_skipped(history, ends),
        *_early_commits(history),
    ]
    times: Counter[tuple[int, int]] = Counter()
    for each in history.done:
        times.update((each.partition, offset) for offset in range(each.first, each.end))
    return GroupVerdict(violations, len(times), sum(count > 1 for count in times.values()))


def _outside_of_spans(history: GroupHistory) -> Iterable[str]:
    """Handed out only between the end of `assigned` and the begin of `revoked` or `lost`."""
    spans: dict[tuple[str, int], list[Span]] = {}
    for span in history.spans:
        spans.setdefault((span.member, span.partition), []).append(span)
    for each in history.handed:
        mine = spans.get((each.member, each.partition), [])
        if not any(span.since <= each.at and each.since <= span.until for span in mine):
            yield f"{each.member} was handed {each.partition} [{each.first}, {each.end}) and did not have it"


def _two_owners(history: GroupHistory) -> Iterable[str]:
    """Nobody is handed records of a partition while another is handed some before and after, without a callback.

    Except where one of the two was put out of a classic group and has not learned it: its commits are refused.
    """
    evicted = [span for span in history.spans if span.evicted]
    for partition in {span.partition for span in history.spans}:
        handed = [each for each in history.handed if each.partition == partition]
        for span in history.spans:
            if span.partition != partition or span.evicted:
                continue
            # By a poll that began so late it was handed out for certain after what had come back before. A poll in
            # which the span ended may have handed out what came with the next one.
            mine = [e for e in handed if e.member == span.member and span.since <= e.since]
            last = max((e.since for e in mine if e.at <= span.until), default=-_FOREVER)
            for other in handed:
                out = any(
                    each.member == other.member
                    and each.partition == partition
                    and each.since <= other.at <= each.until
                    for each in evicted
                )
                if other.member != span.member and span.since < other.since and other.at < last and not out:
                    yield (
                        f"{other.member} was handed {partition} [{other.first}, {other.end}) while "
                        f"{span.member} had it"
                    )


def _skipped(history: GroupHistory, ends: Mapping[int, int]) -> Iterable[str]:
    for partition, end in sorted(ends.items()):
        missing = _missing([each for each in history.done if each.partition == partition], end)
        if missing:
            yield f"nobody has processed {partition} at {missing[0]} ({len(missing)} records)"


def _missing(done: Sequence[Handed], end: int) -> list[int]:
    found: set[int] = set()
    for each in done:
        found.update(range(each.first, each.end))
    return [offset for offset in range(end) if offset not in found]


def _early_commits(history: GroupHistory) -> Iterable[str]:
    """What is committed was processed before, all of it."""
    for partition in {each.partition for each in history.commits}:
        done = sorted(
            (each for each in history.done if each.partition == partition), key=lambda each: each.at
        )
        reached, upto, ahead = 0, 0, set[int]()
        for commit in sorted((c for c in history.commits if c.partition == partition), key=lambda c: c.at):
            while reached < len(done) and done[reached].at <= commit.at:
                ahead.update(range(max(upto, done[reached].first), done[reached].end))
                reached += 1
                while upto in ahead:
                    ahead.discard(upto)
                    upto += 1
            if commit.offset > upto:
                yield f"{partition} was committed up to {commit.offset}, but only [0, {upto}) was processed"
