"""Topic settings under Kafka's names, and their values as Kafka writes them."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping

import attrs
from msgspec import structs

from insync.replication.core.control.records import TopicConfig
from insync.replication.core.types import Value

UNCLEAN = "unclean.leader.election.enable"
UNCLEAN_POLICY = "insync.unclean.leader.election"
"""Policies that Kafka has no word for stand under this name."""
FLUSH = "flush.messages"
"""Stands for `durability`, with two of the values that Kafka takes."""


class Type(enum.IntEnum):
    """Kafka's types of settings."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Source(enum.IntEnum):
    """Where a value comes from."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    STATIC_BROKER = 4
    DEFAULT = 5


class ConfigError(ValueError):
    """A setting, or a value of it, that topics do not have; the text names both."""


@attrs.frozen(kw_only=True)
class Setting:
    """One setting with its value, as Kafka's clients are told it."""

    name: str
    value: str
    type: Type
    source: Source
    read_only: bool = False


_FIXED = {
    "compression.type": ("producer", Type.STRING),
    "message.timestamp.type": ("CreateTime", Type.STRING),
    "index.interval.bytes": ("4096", Type.INT),
    "segment.index.bytes": ("10485760", Type.INT),
    "segment.jitter.ms": ("0", Type.LONG),
    "flush.ms": ("9223372036854775807", Type.LONG),
    "preallocate": ("false", Type.BOOLEAN),
    "remote.storage.enable": ("false", Type.BOOLEAN),
}
"""Settings of Kafka that nothing here goes by: they are taken at Kafka's default alone."""

THROTTLED_REPLICAS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
"""Those that a reassignment adds are throttled here: what tools say of it is taken, and changes nothing."""
THROTTLES = {
    "leader.replication.throttled.rate": "leader_replication_throttled_rate",
    "follower.replication.throttled.rate": "follower_replication_throttled_rate",
}
"""Settings of a node that its quota keeps, by Kafka's names."""
NEVER_SET = ("replica.alter.log.dirs.io.max.bytes.per.second",)
"""Settings that nobody can give a node, so that taking them away, as kafka-reassign-partitions does, is done."""

_INTS = frozenset({"min_insync_replicas", "max_message_bytes", "segment_bytes"})
_OWN = {"produce_batch_validation": "insync.produce.batch.validation"}
_DEFAULTS = TopicConfig()
_MOST = 2**63 - 1
_NEVER = str(_MOST)
_DURABILITIES = {"1": "flushed", _NEVER: "replicated"}
_WHOLE = re.compile(r"[+-]?[0-9]{1,20}")
_NUMBER = re.compile(r"[+-]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][+-]?[0-9]{1,3})?")
_FIELDS = {
    _OWN.get(field.name, field.name.replace("_", ".")): field.name
    for field in structs.fields(TopicConfig)
    if field.name not in ("unclean_leader_election", "durability")
}
_KAFKAS_NAMES = {
    **{field: name for name, field in _FIELDS.items()},
    **{limit: name for name, limit in THROTTLES.items()},
    "unclean_leader_election": UNCLEAN_POLICY,
    "durability": FLUSH,
}
_QUOTED_OR_NAME = re.compile(rf"'[^']*'|\"[^\"]*\"|\b(?:{'|'.join(_KAFKAS_NAMES)})\b")
"""Quoted values and names of topics stay as they are, even if they contain the name of a setting."""


def described(config: TopicConfig) -> list[Setting]:
    """All settings of a topic, those that have no effect too."""
    found = []
    for name, field in _FIELDS.items():
        value, source = getattr(config, field), _source(config, field)
        found.append(Setting(name=name, value=_text(value), type=_type(field, value), source=source))
    policy = config.unclean_leader_election
    source = _source(config, "unclean_leader_election")
    enabled = _text(policy != "wait")
    found.append(Setting(name=UNCLEAN, value=enabled, type=Type.BOOLEAN, source=source))
    found.append(Setting(name=UNCLEAN_POLICY, value=policy, type=Type.STRING, source=source))
    flush = "1" if config.flushes else _NEVER
    found.append(Setting(name=FLUSH, value=flush, type=Type.LONG, source=_source(config, "durability")))
    found += [
        Setting(name=name, value=value, type=kind, source=Source.DEFAULT, read_only=True)
        for name, (value, kind) in _FIXED.items()
    ]
    return sorted(found, key=lambda each: each.name)


def _source(config: TopicConfig, field: str) -> Source:
    return Source.DEFAULT if getattr(config, field) == getattr(_DEFAULTS, field) else Source.TOPIC


def field_of(name: str) -> str | None:
    """The field of `TopicConfig` that Kafka's name stands for; None for a setting that is fixed.

    Raises:
      ConfigError: There is no such setting.
    """
    if name in (UNCLEAN, UNCLEAN_POLICY):
        return "unclean_leader_election"
    if name == FLUSH:
        return "durability"
    if name in _FIXED or name in THROTTLED_REPLICAS:
        return None
    field = _FIELDS.get(name)
    if field is None:
        raise ConfigError(
            f"{name} is not a topic setting of insync; DescribeConfigs lists all topic settings"
        )
    return field


def parsed(given: Mapping[str, str]) -> dict[str, Value]:
    """Settings as insync has them, from Kafka's names and texts.

    Raises:
      ConfigError: A name or a value that topics do not have.
    """
    found: dict[str, Value] = {}
    for name, text in given.items():
        field = field_of(name)
        if name in THROTTLED_REPLICAS:
            continue
        if field is None:
            default, kind = _FIXED[name]
            given_text = text.strip().lower() if kind == Type.BOOLEAN else text.strip()
            if given_text != default:
                raise ConfigError(
                    f"{name}={text} has no effect here: leave it out, or at its default, {default}"
                )
        else:
            found[field] = _value(name, field, text.strip())
    return found


def _value(name: str, field: str, text: str) -> Value:
    if name == UNCLEAN:
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{name}={text}: use true or false")
        return "any" if text.lower() == "true" else "wait"
    if name == FLUSH:
        if text not in _DURABILITIES:
            raise ConfigError(
                f"{name}={text}: use 1 (the device has each record before it is acknowledged) or {_NEVER} "
                "(replication alone makes records safe)"
            )
        return _DURABILITIES[text]
    default = getattr(_DEFAULTS, field)
    if is_list(name):
        return ",".join(dict.fromkeys(as_list(text)))
    if isinstance(default, str):
        return text
    # Python's numbers may have underscores, and the digits of any script.
    if not (_WHOLE if isinstance(default, int) else _NUMBER).fullmatch(text):
        raise ConfigError(f"{name}={text}: use a number")
    if isinstance(default, int) and not -_MOST <= int(text) <= _MOST:
        raise ConfigError(f"{name}={text}: use a number of 64 bits")
    return type(default)(text)


def in_kafkas_names(text: str) -> str:
    """The controller's text about settings, with the names that Kafka's clients know."""
    return _QUOTED_OR_NAME.sub(lambda found: _KAFKAS_NAMES.get(found[0], found[0]), text)


def throttle(name: str, text: str | None) -> tuple[str, int | None]:
    """The limit of a node that a setting stands for, and its value in bytes a second; None takes it away.

    Raises:
      ConfigError: Nodes have no such setting that can be changed, or it is no number.
    """
    limit = THROTTLES.get(name)
    if limit is None:
        raise ConfigError(
            f"{name} cannot be changed here; the node settings that can are {', '.join(THROTTLES)}. "
            "Change the others in the node's file or on its command line"
        )
    if text is None:
        return limit, None
    if not _WHOLE.fullmatch(text.strip()):
        raise ConfigError(f"{name}={text[:40]}: use a number of bytes a second")
    return limit, int(text)


def as_list(text: str) -> list[str]:
    """The members of a setting that is a list."""
    return [each.strip() for each in text.split(",") if each.strip()]


def is_list(name: str) -> bool:
    """Whether members can be added to a setting and taken from it."""
    return name == "cleanup.policy"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _type(field: str, value: object) -> Type:
    if field == "cleanup_policy":
        return Type.LIST
    if isinstance(value, float):
        return Type.DOUBLE
    if isinstance(value, int):
        return Type.INT if field in _INTS else Type.LONG
    return Type.STRING
