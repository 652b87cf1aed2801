"""What a new topic may be called, how it may be set, and on which nodes its replicas are placed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import attrs

from .errors import ErrorCode
from .messages import CreateTopicRequest
from .records import TopicConfig
from .transitions import UNCLEAN_POLICIES

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_INT32_MAX = 2**31 - 1
_LEAST = {"min_insync_replicas": 1, "max_message_bytes": 62, "segment_bytes": 1024}


class TopicError(Exception):
    """A topic cannot be created as asked; `code` and the text go to whoever asked."""

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
            f"topic name {name!r} is not legal: use 1 to 249 of the characters a-z A-Z 0-9 . _ -",
        )


def parse_config(given: Mapping[str, int | str]) -> TopicConfig:
    """Topic settings from names and values; numbers may come as text.

    Raises:
      TopicError: A name is unknown or a value is out of range.
    """
    known = {field.name: field.type for field in attrs.fields(TopicConfig)}
    values: dict[str, int | str] = {}
    for name, value in given.items():
        if name not in known:
            raise _bad_config(f"unknown topic setting {name!r}: the settings are {', '.join(sorted(known))}")
        values[name] = str(value) if name == "unclean_leader_election" else _number(name, value)
    config = TopicConfig(**values)  # type: ignore[arg-type]
    if config.unclean_leader_election not in UNCLEAN_POLICIES:
        raise _bad_config(
            f"unclean_leader_election={config.unclean_leader_election!r}: use one of {', '.join(UNCLEAN_POLICIES)}"
        )
    for name, least in _LEAST.items():
        if not least <= getattr(config, name) <= _INT32_MAX:
            raise _bad_config(f"{name}={getattr(config, name)}: use {least} to {_INT32_MAX}")
    return config


def _number(name: str, value: int | str) -> int:
    try:
        return int(value)
    except ValueError:
        raise _bad_config(f"{name}={value!r} is not a whole number") from None


def _bad_config(message: str) -> TopicError:
    return TopicError(ErrorCode.INVALID_CONFIG, message)


def check_request(request: CreateTopicRequest, live: Sequence[int]) -> TopicConfig:
    """The settings of a topic that may be created now.

    Raises:
      TopicError: Name, counts or settings are not possible; the text says what would be.
    """
    check_name(request.name)
    if request.partitions < 1:
        raise TopicError(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {request.name!r} asks for {request.partitions} partitions: ask for 1 or more",
        )
    if not 1 <= request.replication_factor <= len(live):
        nodes = ", ".join(map(str, live)) or "none"
        raise TopicError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"topic {request.name!r} asks for {request.replication_factor} replicas, but {len(live)} nodes are "
            f"alive ({nodes}): start more nodes or ask for 1 to {len(live)} replicas",
        )
    config = parse_config(request.config)
    if config.min_insync_replicas > request.replication_factor:
        if "min_insync_replicas" not in request.config:
            return attrs.evolve(config, min_insync_replicas=request.replication_factor)
        raise _bad_config(
            f"min_insync_replicas={config.min_insync_replicas} is more than the {request.replication_factor} "
            f"replicas of topic {request.name!r}: no acks=all write could ever succeed"
        )
    return config


def assign(
    live: Sequence[int], partitions: int, replication_factor: int, start: int
) -> list[tuple[int, ...]]:
    """Replicas of each partition, in order of preference: leaders go round the nodes, and the followers of
    one node's partitions are spread over the others, so that its load spreads when it dies.
    """
    nodes = sorted(live)
    count = len(nodes)
    assignment = []
    for index in range(partitions):
        first = (start + index) % count
        shift = (start + index) // count
        replicas = [nodes[first]]
        for follower in range(replication_factor - 1):
            step = 1 + (shift + follower) % (count - 1)
            replicas.append(nodes[(first + step) % count])
        assignment.append(tuple(replicas))
    return assignment
