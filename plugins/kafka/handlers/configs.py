"""Settings of topics and nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache

import attrs
import trio

from insync.replication.core import messages as m
from insync.replication.core.control import internal_topics, topic_changes
from insync.replication.core.control.quotas import NODE, changed
from insync.replication.core.control.records import quota_key
from insync.replication.core.control.topics import TopicError
from insync.replication.core.errors import ErrorCode
from insync.replication.core.types import Value
from insync.replication.metadata import MetadataError
from insync.replication.node._policies import election_policies
from insync.replication.node.requests.authorisation import Operation

from ..client import NOT_ALLOWED, Client
from ..core import configs
from ..core.directory import INTERNAL_TOPICS, error_of_absent
from ..protocol import Encoded, Struct, message
from ..protocol.apis import Api, KafkaError
from .again import TOO_OFTEN, Again
from .cluster import default_factor
from .table import Offer, encoded, joined
from .topics import ask, patience, seen

_Describe = message("DescribeConfigsResponse")
_Alter = message("AlterConfigsResponse")
_Incremental = message("IncrementalAlterConfigsResponse")
_Resources = message("ListConfigResourcesResponse")
_TOPIC, _BROKER, _BROKER_LOGGER, _CLIENT_METRICS, _GROUP = 2, 4, 8, 16, 32
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
_DESCRIBED_IN_A_TURN = 100
"""Resources. A topic's settings take 0.1 ms."""


async def describe_configs(client: Client, request: Struct, version: int) -> Struct:
    """All settings of topics and nodes, or those that are named; synonyms only if they are asked for."""
    await seen(client)  # who has changed a setting asks any node what it is
    unread = await _unread(client, request.resources)
    parts: list[Encoded] = []
    results: list[Struct] = []
    again = Again()
    for each in request.resources:
        if len(results) == _DESCRIBED_IN_A_TURN:
            parts.append(encoded(_Describe, "results", results, version))
            results = []
            await trio.lowlevel.checkpoint()
        told = _Describe.DescribeConfigsResult(
            error_message=None, resource_type=each.resource_type, resource_name=each.resource_name
        )
        results.append(told)
        name = (each.resource_type, each.resource_name)
        if not again.may_tell(name):
            told.error_code, told.error_message = ErrorCode.INVALID_REQUEST, TOO_OFTEN
            continue
        settings = _settings(client, told, unread)
        again.tells(name, len(settings))
        wanted = set(each.configuration_keys or ())
        for setting in settings:
            if not wanted or setting.name in wanted:
                told.configs.append(_described(setting, with_synonyms=request.include_synonyms))
    parts.append(encoded(_Describe, "results", results, version))
    answer: Struct = _Describe(results=joined(parts))
    return answer


async def _unread(client: Client, resources: Sequence[Struct]) -> str:
    """Why a topic that the view does not show may exist; empty: the store was read, or shows all that are named.

    It is read once for a request.
    """
    topics = client.view.topics
    if client.may(Operation.ADMIN) and any(
        each.resource_type == _TOPIC and each.resource_name not in topics for each in resources
    ):
        try:
            await client.service.confirm_view()
        except MetadataError as error:
            return str(error)
    return ""


def _unknown(told: Struct, unread: str) -> None:
    """Answer for a topic that the view does not show."""
    if unread:
        told.error_code, told.error_message = ErrorCode.LEADER_NOT_AVAILABLE, unread
    else:
        told.error_code = error_of_absent(told.resource_name)


def _settings(client: Client, told: Struct, unread: str) -> list[configs.Setting]:
    name = told.resource_name
    if told.resource_type == _TOPIC:
        if not client.may(Operation.ADMIN):
            told.error_code = KafkaError.TOPIC_AUTHORIZATION_FAILED
            return []
        topic = client.view.topics.get(name)
        if topic is None:
            _unknown(told, unread)
            return []
        return configs.described(topic.config)
    if told.resource_type == _BROKER:
        if not client.may(Operation.ADMIN):
            told.error_code = KafkaError.CLUSTER_AUTHORIZATION_FAILED
            return []
        if name not in ("", str(client.service.node_id)):
            told.error_code = ErrorCode.INVALID_REQUEST
            told.error_message = f"this is node {client.service.node_id}: ask node {name} itself"
            return []
        return _of_node(client) if name else []
    told.error_code = ErrorCode.INVALID_REQUEST
    told.error_message = _without_settings(told.resource_type)
    return []


def _without_settings(kind: int) -> str:
    """Why a resource that is neither a topic nor a node is refused."""
    if kind == _GROUP:
        return "groups have no settings of their own here: the nodes' group_... settings apply to every group"
    if kind == _BROKER_LOGGER:
        return "loggers of nodes cannot be changed here"
    if kind == _CLIENT_METRICS:
        return "nodes do not collect metrics of clients (KIP-714)"
    return f"resources of type {kind} have no settings here: use topics (2) or brokers (4)"


def _of_node(client: Client) -> list[configs.Setting]:
    """The settings that a gateway's clients meet; a node's own are no concern of theirs."""
    options, quotas = client.options, client.view.quotas
    limits: dict[str, int] = {}
    for owner in ("", str(client.service.node_id)):
        if (found := quotas.get(quota_key(NODE, owner))) is not None:
            limits |= found[0].limits
    values = {
        "auto.create.topics.enable": (str(options.auto_create_topics).lower(), configs.Type.BOOLEAN),
        "num.partitions": (str(options.num_partitions), configs.Type.INT),
        "default.replication.factor": (str(default_factor(client)), configs.Type.INT),
        "broker.id": (str(client.service.node_id), configs.Type.INT),
    }
    settings = [
        configs.Setting(
            name=name, value=value, type=kind, source=configs.Source.STATIC_BROKER, read_only=True
        )
        for name, (value, kind) in values.items()
    ]
    settings += [
        configs.Setting(
            name=name, value=str(limits[limit]), type=configs.Type.LONG, source=configs.Source.DYNAMIC_BROKER
        )
        for name, limit in configs.THROTTLES.items()
        if limit in limits
    ]
    return sorted(settings, key=lambda each: each.name)


def _described(setting: configs.Setting, *, with_synonyms: bool) -> Struct:
    synonyms = []
    if with_synonyms:
        synonym = _Describe.DescribeConfigsSynonym(
            name=setting.name, value=setting.value, source=setting.source
        )
        synonyms.append(synonym)
    return _Describe.DescribeConfigsResourceResult(
        name=setting.name,
        value=setting.value,
        read_only=setting.read_only,
        config_source=setting.source,
        synonyms=synonyms,
        config_type=setting.type,
        documentation=None,
    )


@attrs.define
class _Change:
    config: dict[str, Value]
    reset: list[str]


async def alter_configs(client: Client, request: Struct, version: int) -> Struct:
    """Replace all overrides of a topic by those that are given."""
    answer, until = _Alter(), patience()
    unread = await _unread(client, request.resources)
    counts = Counter((each.resource_type, each.resource_name) for each in request.resources)
    for each in request.resources:
        told = _Alter.AlterConfigsResourceResponse(
            error_message=None, resource_type=each.resource_type, resource_name=each.resource_name
        )
        answer.responses.append(told)
        nulls = [setting.name for setting in each.configs if setting.value is None]
        if text := _problem(each, counts, nulls):
            told.error_code, told.error_message = ErrorCode.INVALID_REQUEST, text
            continue

        def change(each: Struct = each) -> _Change:
            config = configs.parsed({setting.name: setting.value for setting in each.configs})
            overridden = {
                name
                for setting in configs.described(client.view.topics[each.resource_name].config)
                if setting.source == configs.Source.TOPIC and (name := configs.field_of(setting.name))
            }
            return _Change(config, sorted(overridden - config.keys()))

        await _apply(client, told, change, until, unread, validate_only=request.validate_only)
    return answer


def _problem(wanted: Struct, counts: Mapping[tuple[int, str], int], nulls: Sequence[str]) -> str:
    """The mistake in a request about one resource, whatever there is of that name; empty: there is none.

    counts: how often each resource is named. nulls: settings that are to have a value, and have null.
    """
    kind, name = wanted.resource_type, wanted.resource_name
    if counts[kind, name] > 1:
        return "the request names the resource more than once"
    if kind not in (_TOPIC, _BROKER):
        return _without_settings(kind)
    if kind == _TOPIC and not name:
        return "the name of a topic is empty"
    if kind == _BROKER and name and not _is_node_id(name):
        return f"{name!r} is not the id of a node"
    for setting, count in Counter(each.name for each in wanted.configs).items():
        if count > 1:
            return f"{setting} is changed more than once"
    return f"{nulls[0]} is null: delete it, or give a value" if nulls else ""


def _is_node_id(text: str) -> bool:
    return (
        len(text) <= 10
        and text.isascii()
        and text.isdigit()
        and text == str(int(text))
        and int(text) < 1 << 31
    )


async def incremental_alter_configs(client: Client, request: Struct, version: int) -> Struct:
    """Set, delete, append to, subtract from settings of a topic (KIP-339)."""
    answer, until = _Incremental(), patience()
    unread = await _unread(client, request.resources)
    counts = Counter((each.resource_type, each.resource_name) for each in request.resources)
    for each in request.resources:
        told = _Incremental.AlterConfigsResourceResponse(
            error_message=None, resource_type=each.resource_type, resource_name=each.resource_name
        )
        answer.responses.append(told)
        nulls = [op.name for op in each.configs if op.value is None and op.config_operation != _DELETE]
        if text := _problem(each, counts, nulls):
            told.error_code, told.error_message = ErrorCode.INVALID_REQUEST, text
            continue

        if each.resource_type == _BROKER:
            await _throttle(client, told, each, until, validate_only=request.validate_only)
            continue

        def change(each: Struct = each) -> _Change:
            return _increments(client, each)

        await _apply(client, told, change, until, unread, validate_only=request.validate_only)
    return answer


async def _throttle(
    client: Client, told: Struct, wanted: Struct, until: float, *, validate_only: bool
) -> None:
    """Set the throttles of reassignments at a node, or at all nodes if it has no name (KIP-73)."""
    if not client.may(Operation.ADMIN):
        told.error_code, told.error_message = KafkaError.CLUSTER_AUTHORIZATION_FAILED, NOT_ALLOWED
        return
    limits: dict[str, int] = {}
    remove: list[str] = []
    try:
        for each in wanted.configs:
            if each.config_operation not in (_SET, _DELETE):
                raise configs.ConfigError(f"{each.name} is not a list: set or delete it")
            if each.config_operation == _DELETE and each.name in configs.NEVER_SET:
                continue
            limit, value = configs.throttle(each.name, each.value if each.config_operation == _SET else None)
            if value is None:
                remove.append(limit)
            else:
                limits[limit] = value
        asked = m.AlterQuotasRequest(
            entity_type=NODE, name=wanted.resource_name, limits=limits, remove=remove
        )
        changed(asked, None)
    except configs.ConfigError as error:
        told.error_code, told.error_message = ErrorCode.INVALID_CONFIG, str(error)
        return
    except TopicError as error:
        told.error_code, told.error_message = error.code, configs.in_kafkas_names(error.message)
        return
    if not validate_only:
        done = await ask(client, asked, until, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
        told.error_code, told.error_message = done.error, configs.in_kafkas_names(done.message) or None


def _increments(client: Client, wanted: Struct) -> _Change:
    made = _Change({}, [])
    now: Mapping[str, str] = {
        each.name: each.value for each in configs.described(client.view.topics[wanted.resource_name].config)
    }
    for each in wanted.configs:
        if each.config_operation == _DELETE:
            # What topics do not have is not set, either: tools take away settings of any Kafka.
            with suppress(configs.ConfigError):
                if (field := configs.field_of(each.name)) is not None:
                    made.reset.append(field)
            continue
        text = each.value
        configs.field_of(each.name)
        if each.config_operation in (_APPEND, _SUBTRACT):
            if not configs.is_list(each.name):
                raise configs.ConfigError(f"{each.name} is not a list: no members can be added or removed")
            members, given = configs.as_list(now[each.name]), configs.as_list(text)
            if each.config_operation == _APPEND:
                members += [member for member in given if member not in members]
            else:
                members = [member for member in members if member not in given]
            text = ",".join(members)
        elif each.config_operation != _SET:
            raise configs.ConfigError(f"{each.name}: operation {each.config_operation} is not one of 0 to 3")
        made.config |= configs.parsed({each.name: text})
    return made


async def _apply(
    client: Client,
    told: Struct,
    change: Callable[[], _Change],
    until: float,
    unread: str,
    *,
    validate_only: bool,
) -> None:
    """Have one topic changed; what came of it goes into `told`."""
    name = told.resource_name
    if told.resource_type != _TOPIC:  # of AlterConfigs alone
        if not client.may(Operation.ADMIN):
            told.error_code, told.error_message = KafkaError.CLUSTER_AUTHORIZATION_FAILED, NOT_ALLOWED
            return
        told.error_code = ErrorCode.INVALID_CONFIG
        told.error_message = "a node is set by its file and its command line; restart it to change that"
        return
    if not client.may(Operation.ADMIN):
        told.error_code = KafkaError.TOPIC_AUTHORIZATION_FAILED
        return
    topic = client.view.topics.get(name)
    if topic is None:
        _unknown(told, unread)
        return
    try:
        made = change()
    except configs.ConfigError as error:
        told.error_code, told.error_message = ErrorCode.INVALID_CONFIG, str(error)
        return
    asked = m.AlterConfigRequest(name=name, config=made.config, reset=made.reset)
    if validate_only:
        try:
            if name in INTERNAL_TOPICS:
                internal_topics.check_change(name, asked)
            topic_changes.plan(asked, topic, client.view, _policies())
        except TopicError as error:
            told.error_code, told.error_message = error.code, configs.in_kafkas_names(error.message)
        return
    done = await ask(client, asked, until)
    told.error_code, told.error_message = done.error, configs.in_kafkas_names(done.message) or None


@cache
def _policies() -> frozenset[str]:
    """The names of the election policies that are installed here."""
    return frozenset(election_policies())


async def list_resources(client: Client, request: Struct, version: int) -> Struct:
    """Topics and nodes have settings (KIP-1142). There are no loggers, client metrics and groups with any."""
    answer: Struct = _Resources()
    wanted = set(request.resource_types) if version else {_CLIENT_METRICS}
    if not client.may(Operation.ADMIN):
        answer.error_code = KafkaError.CLUSTER_AUTHORIZATION_FAILED
        return answer
    if wanted - {_TOPIC, _BROKER, _BROKER_LOGGER, _CLIENT_METRICS, _GROUP}:
        answer.error_code = KafkaError.UNSUPPORTED_VERSION
        return answer
    await seen(client)
    found = {_TOPIC: sorted(client.view.topics), _BROKER: map(str, client.directory.brokers(client.view))}
    answer.config_resources = [
        _Resources.ConfigResource(resource_name=name, resource_type=kind)
        for kind, names in found.items()
        for name in names
        if not wanted or kind in wanted
    ]
    return answer


OFFERS = (
    Offer(Api.DESCRIBE_CONFIGS, 1, 4, describe_configs),
    Offer(Api.ALTER_CONFIGS, 0, 2, alter_configs),
    Offer(Api.INCREMENTAL_ALTER_CONFIGS, 0, 1, incremental_alter_configs),
    Offer(Api.LIST_CONFIG_RESOURCES, 0, 1, list_resources),
)
