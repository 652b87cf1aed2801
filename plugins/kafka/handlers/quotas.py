"""Limits of users and client ids, which are those of the nodes (KIP-546)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from insync.replication.core import messages as m
from insync.replication.core.control.quotas import CLIENT_ID, CONSUMER, PRODUCER, USER
from insync.replication.core.control.records import QuotaRecord
from insync.replication.core.errors import ErrorCode
from insync.replication.node.requests.authorisation import Operation

from ..client import NOT_ALLOWED, Client
from ..protocol import Struct, message
from ..protocol.apis import Api, KafkaError
from .table import Offer
from .topics import ask, patience, seen

_Described = message("DescribeClientQuotasResponse")
_Altered = message("AlterClientQuotasResponse")
_TYPES = {"user": USER, "client-id": CLIENT_ID}
_NAMES = {ours: theirs for theirs, ours in _TYPES.items()}
_EXACT, _DEFAULT, _ANY = range(3)
_RATES = (PRODUCER, CONSUMER)
_NEVER_SET = ("request_percentage", "controller_mutation_rate", "connection_creation_rate")
"""Limits of Kafka that nobody can have here, so that taking them away is done."""


class _RefusedError(Exception):
    """The text goes to the client."""

    def __init__(self, text: str, code: int = ErrorCode.INVALID_REQUEST) -> None:
        super().__init__(text)
        self.code = code


async def describe(client: Client, request: Struct, version: int) -> Struct:
    """Entities that have limits and match; a pair of a user and a client id never has one here."""
    answer = _Described(error_message=None, entries=[])
    if not client.may(Operation.ADMIN):
        answer.entries = None
        answer.error_code = KafkaError.CLUSTER_AUTHORIZATION_FAILED
        answer.error_message = NOT_ALLOWED
        return answer
    await seen(client)
    try:
        _check(request.components)
        matching = [each for each, _ in client.view.quotas.values() if _matches(each, request)]
    except _RefusedError as error:
        answer.entries, answer.error_code, answer.error_message = (
            None,
            error.code,
            str(error),
        )
        return answer
    for each in sorted(matching, key=lambda record: (record.entity_type, record.name)):
        entity = _Described.EntityData(entity_type=_NAMES[each.entity_type], entity_name=each.name or None)
        values = [_Described.ValueData(key=rate, value=float(limit)) for rate, limit in each.limits.items()]
        answer.entries.append(_Described.EntryData(entity=[entity], values=values))
    return answer


def _check(components: Sequence[Struct]) -> None:
    """Refuse what cannot be asked for, whichever entities there are."""
    kinds = [each.entity_type for each in components]
    for each in components:
        kind = each.entity_type
        if not kind or kinds.count(kind) > 1:
            raise _RefusedError(f"entity type {kind!r} is empty, or named twice")
        # Nobody has limits of an address here; who asks for them is told that there are none.
        if kind not in (*_TYPES, "ip"):
            text = f"there is no entity type {kind!r}: use user or client-id"
            raise _RefusedError(text, KafkaError.UNSUPPORTED_VERSION)
        if each.match_type not in (_EXACT, _DEFAULT, _ANY):
            raise _RefusedError(f"there is no match type {each.match_type}")
        if (each.match_type == _EXACT) != (each.match is not None):
            raise _RefusedError("a name goes with an exact match (match type 0), and with no other")


def _matches(record: QuotaRecord, request: Struct) -> bool:
    """All components must hold; `strict`: an entity has no other types than those."""
    if record.entity_type not in _NAMES:
        return False
    for each in request.components:
        if _TYPES.get(each.entity_type) != record.entity_type:
            return False
        if each.match_type == _EXACT and (each.match != record.name or not record.name):
            return False
        if each.match_type == _DEFAULT and record.name:
            return False
    return bool(request.components) or not request.strict


async def alter(client: Client, request: Struct, version: int) -> Struct:
    """Each entity for itself; the answer repeats it."""
    answer, until = _Altered(), patience()
    named = [
        tuple((each.entity_type, each.entity_name) for each in entry.entity) for entry in request.entries
    ]
    counts = Counter(named)
    for names, entry in dict(zip(named, request.entries, strict=True)).items():
        if counts[names] > 1:
            error, text = int(ErrorCode.INVALID_REQUEST), "the request names the entity more than once"
        else:
            error, text = await _alter(client, entry, until, validate_only=request.validate_only)
        answer.entries.append(
            _Altered.EntryData(
                error_code=error,
                error_message=text or None,
                entity=[
                    _Altered.EntityData(entity_type=each.entity_type, entity_name=each.entity_name)
                    for each in entry.entity
                ],
            )
        )
    await seen(client)
    return answer


async def _alter(client: Client, entry: Struct, until: float, *, validate_only: bool) -> tuple[int, str]:
    try:
        change = _change(entry)
    except _RefusedError as error:
        return ErrorCode.INVALID_REQUEST, str(error)
    if not client.may(Operation.ADMIN):
        return KafkaError.CLUSTER_AUTHORIZATION_FAILED, NOT_ALLOWED
    if validate_only:
        return ErrorCode.NONE, ""
    done = await ask(client, change, until, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
    return done.error, done.message


def _change(entry: Struct) -> m.AlterQuotasRequest:
    if len(entry.entity) != 1:
        raise _RefusedError("a limit applies to a user or to a client id, not to a pair of them")
    (entity,) = entry.entity
    if entity.entity_type not in _TYPES:
        raise _RefusedError(f"limits for {entity.entity_type!r} are not supported: use user or client-id")
    if entity.entity_name == "":
        raise _RefusedError("the name of an entity is empty: null is the default of its type")
    limits: dict[str, int] = {}
    if twice := [key for key, count in Counter(op.key for op in entry.ops).items() if count > 1]:
        raise _RefusedError(f"the limit {twice[0]!r} is changed more than once")
    for op in entry.ops:
        if op.remove and op.key in _NEVER_SET:
            continue
        if op.key not in _RATES:
            raise _RefusedError(f"the limit {op.key!r} is not supported: use {' or '.join(_RATES)}")
        if not op.remove:
            if not 1 <= op.value <= 2**63 - 1024 or op.value != int(op.value):
                raise _RefusedError(f"{op.key}={op.value}: use a whole number of bytes a second, 1 or more")
            limits[op.key] = int(op.value)
    return m.AlterQuotasRequest(
        entity_type=_TYPES[entity.entity_type],
        name=entity.entity_name or "",
        limits=limits,
        remove=[op.key for op in entry.ops if op.remove and op.key in _RATES],
    )


OFFERS = (
    Offer(Api.DESCRIBE_CLIENT_QUOTAS, 0, 1, describe),
    Offer(Api.ALTER_CLIENT_QUOTAS, 0, 1, alter),
)
