"""The names and settings that a new topic may have, and the nodes on which its replicas are placed."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches

from msgspec import structs

from ..errors import ErrorCode
from ..messages import CreateTopicRequest
from ..types import Value
from ..wording import counted
from .elections import POLICIES
from .records import TopicConfig

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_INT32_MAX, _INT64_MAX = 2**31 - 1, 2**63 - 1
_RANGES: dict[str, tuple[float, float]] = {
    "min_insync_replicas": (1, _INT32_MAX),
    "max_message_bytes": (62, _INT32_MAX),
    "segment_bytes": (1024, _INT32_MAX),
    "segment_ms": (1, _INT64_MAX),
    "retention_ms": (-1, _INT64_MAX),
    "retention_bytes": (-1, _INT64_MAX),
    "file_delete_delay_ms": (0, _INT64_MAX),
    "min_cleanable_dirty_ratio": (0, 1),
    "min_compaction_lag_ms": (0, _INT64_MAX),
    "max_compaction_lag_ms": (1, _INT64_MAX),
    "delete_retention_ms": (0, _INT64_MAX),
}
LONGEST_CREATION_ID = 256
"""Characters: every node keeps it as long as there is the topic."""
_TEXTS = ("unclean_leader_election", "cleanup_policy", "produce_batch_validation", "durability")
_VALIDATIONS = ("auto", "relaxed", "strict")
_DURABILITIES = ("replicated", "flushed")
_CLEANUP_POLICIES = ("delete", "compact", "compact,delete", "delete,compact")


class TopicError(Exception):
    """A topic cannot be created as requested; `code` and the text go to the client."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


def check_name(name: str) -> None:
    """Kafka's rule for topic names: they are folder names too.

    Raises:
      TopicError: The name is not legal.
    """
    if name in (".", "..") or not _LEGAL_NAME.fullmatch(name):
        raise TopicError(
            ErrorCode.INVALID_TOPIC,
            f"topic name {name!r} is not valid: use 1 to 249 of the characters a-z A-Z 0-9 . _ -",
        )


def parse_config(given: Mapping[str, Value], policies: Collection[str] = POLICIES.keys()) -> TopicConfig:
    """Topic settings from names and values; numbers may come as text. `policies`: the election policies there are.

    Raises:
      TopicError: A name is unknown or a value is out of range.
    """
    config = TopicConfig(**{name: _value(name, value) for name, value in given.items()})  # type: ignore[arg-type]
    if config.unclean_leader_election not in policies:
        raise _bad_config(
            f"unclean_leader_election={config.unclean_leader_election!r}: use one of {', '.join(sorted(policies))}"
        )
    if config.cleanup_policy not in _CLEANUP_POLICIES:
        raise _bad_config(f"cleanup_policy={config.cleanup_policy!r}: use delete, compact or compact,delete")
    if config.produce_batch_validation not in _VALIDATIONS:
        raise _bad_config(
            f"produce_batch_validation={config.produce_batch_validation!r}: use auto, relaxed or strict"
        )
    if config.durability not in _DURABILITIES:
        raise _bad_config(f"durability={config.durability!r}: use replicated or flushed")
    for name, (least, most) in _RANGES.items():
        if not least <= getattr(config, name) <= most:
            raise _bad_config(f"{name}={getattr(config, name)}: use {least} to {most}")
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise _bad_config(
            f"min_compaction_lag_ms={config.min_compaction_lag_ms} is above "
            f"max_compaction_lag_ms={config.max_compaction_lag_ms}"
        )
    return config


def _value(name: str, value: Value) -> Value:
    if name in _TEXTS:
        return str(value)
    if name not in _RANGES:
        raise unknown_setting(name)
    try:
        return float(value) if name == "min_cleanable_dirty_ratio" else int(value)
    except (ValueError, OverflowError):  # the latter of what is infinite
        least, most = _RANGES[name]
        kind = "number" if name == "min_cleanable_dirty_ratio" else "whole number"
        raise _bad_config(f"{name}={value!r}: use a {kind} from {least} to {most}") from None


def unknown_setting(name: str) -> TopicError:
    known = sorted((*_TEXTS, *_RANGES))
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"the settings are {', '.join(known)}"
    return _bad_config(f"unknown topic setting {name!r}: {hint}")


def _bad_config(message: str) -> TopicError:
    return TopicError(ErrorCode.INVALID_CONFIG, message)


def check_request(
    request: CreateTopicRequest, live: Sequence[int], policies: Collection[str] = POLICIES.keys()
) -> TopicConfig:
    """The settings of a topic that may be created now.

    Raises:
      TopicError: Name, counts or settings are not possible; the text says what would be.
    """
    check_name(request.name)
    if len(request.creation_id) > LONGEST_CREATION_ID:
        raise TopicError(
            ErrorCode.INVALID_REQUEST,
            f"a creation id of {len(request.creation_id)} characters: use at most {LONGEST_CREATION_ID}",
        )
    if request.partitions < 1:
        raise TopicError(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {request.name!r} asks for {counted(request.partitions, 'partition')}: ask for 1 or more",
        )
    if not 1 <= request.replication_factor <= len(live):
        nodes = ", ".join(map(str, live)) or "none"
        raise TopicError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"topic {request.name!r} asks for {counted(request.replication_factor, 'replica')}, but "
            f"{_alive(live)} ({nodes}): start more nodes or ask for 1 to {counted(len(live), 'replica')}",
        )
    config = parse_config(request.config, policies)
    if config.min_insync_replicas > request.replication_factor:
        if "min_insync_replicas" not in request.config:
            return structs.replace(config, min_insync_replicas=request.replication_factor)
        raise _bad_config(
            f"min_insync_replicas={config.min_insync_replicas} is more than the {request.replication_factor} "
            f"replicas of topic {request.name!r}: no acks=all write could ever succeed; use "
            f"1 to {request.replication_factor}"
        )
    return config


def _alive(live: Collection[int]) -> str:
    return f"{counted(len(live), 'node')} {'is' if len(live) == 1 else 'are'} alive"


def check_count(topic: str, replication_factor: int, live: Collection[int]) -> None:
    """Raises `TopicError` if there are fewer living nodes than replicas."""
    if len(live) < replication_factor:
        raise TopicError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"topic {topic!r} has {counted(replication_factor, 'replica')} of each partition, but only "
            f"{_alive(live)}: start more",
        )


def assign(
    racks: Mapping[int, str], partitions: int, replication_factor: int, seed: int
) -> list[tuple[int, ...]]:
    """Replicas of each partition, in order of preference, by node id and its rack.

    Leaders go round the nodes, beginning at a place that `seed` tells, and the followers of one node's partitions
    are spread over the others, so that its load spreads when it dies. Where every node names a rack, a partition
    has no second replica in a rack while another rack has none (KIP-36); a node without one makes racks count for
    nothing. Equal arguments give equal assignments.
    """
    groups: Mapping[int, object] = racks if all(racks.values()) else {node: node for node in racks}
    nodes = _alternating(groups)
    count = len(nodes)
    assignment = []
    for index in range(seed, seed + partitions):
        first, shift = index % count, index // count
        others = [nodes[(first + 1 + (shift + step) % (count - 1)) % count] for step in range(count - 1)]
        assignment.append(_spread([nodes[first], *others], groups, replication_factor))
    return assignment


def _spread(order: Sequence[int], groups: Mapping[int, object], count: int) -> tuple[int, ...]:
    """The first `count` nodes in order, but no second one of a group before each group has had its turn."""
    chosen: list[int] = []
    while len(chosen) < count:
        had: set[object] = set()
        for node in order:
            if node not in chosen and groups[node] not in had:
                chosen.append(node)
                had.add(groups[node])
    return tuple(chosen[:count])


def _alternating(groups: Mapping[int, object]) -> list[int]:
    """The nodes so that neighbours are of different groups as far as may be: one of each, round by round."""
    by_group: dict[object, list[int]] = {}
    for node in sorted(groups):
        by_group.setdefault(groups[node], []).append(node)
    members = [by_group[group] for group in sorted(by_group, key=lambda group: by_group[group][0])]
    rounds = max(map(len, members))
    return [nodes[turn] for turn in range(rounds) for nodes in members if turn < len(nodes)]
