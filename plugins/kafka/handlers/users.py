"""Users and what is kept of their passwords (KIP-554). Clients salt and hash a password before they send it."""

from __future__ import annotations

from collections import Counter

from insync.replication.core import messages as m
from insync.replication.core import scram
from insync.replication.core.errors import ErrorCode
from insync.replication.node.service import NotAllowedError

from ..client import Client
from ..protocol import Struct, message
from ..protocol.apis import Api, KafkaError
from .table import Offer
from .topics import ask, patience, seen

_NUMBERS = {1: scram.SCRAM_SHA_256, 2: scram.SCRAM_SHA_512}
_MECHANISMS = {name: number for number, name in _NUMBERS.items()}
MOST_ALTERED = 100
"""Users whom one request changes: each of them is a change of the metadata store."""

_Described = message("DescribeUserScramCredentialsResponse")
_Altered = message("AlterUserScramCredentialsResponse")


async def describe(client: Client, request: Struct, version: int) -> Struct:
    """By which mechanisms users may log in; all of them, or those that are named."""
    answer = _Described(error_message=None)
    await seen(client)
    named = None if not request.users else [each.name for each in request.users]
    try:
        found = (await client.service.ask(client, m.DescribeUsersRequest(names=named))).message
    except NotAllowedError as error:
        answer.error_code, answer.error_message = KafkaError.CLUSTER_AUTHORIZATION_FAILED, str(error)
        return answer
    assert isinstance(found, m.DescribeUsersResponse)
    counts = Counter(named or ())
    answer.results = [_told(each, counts[each.name] > 1) for each in found.users]
    return answer


def _told(user: m.UserInfo, is_twice: bool) -> Struct:
    told = _Described.DescribeUserScramCredentialsResult(user=user.name, error_message=None)
    if is_twice:
        told.error_code = ErrorCode.DUPLICATE_RESOURCE
        told.error_message = f"user {user.name!r} is named twice"
    elif not user.mechanisms:
        told.error_code = ErrorCode.RESOURCE_NOT_FOUND
        told.error_message = f"there is no user {user.name!r}"
    else:
        told.credential_infos = [
            _Described.CredentialInfo(mechanism=_MECHANISMS[mechanism], iterations=iterations)
            for mechanism, iterations in user.mechanisms.items()
        ]
    return told


async def alter(client: Client, request: Struct, version: int) -> Struct:
    """Set credentials, or take them away; each user for itself, all that is asked about it or nothing."""
    answer, until = _Altered(), patience()
    # Grouped once: to look through all for each name would let one request hold up the event loop for seconds.
    asked: dict[str, tuple[list[int], list[Struct]]] = {}
    for each in request.deletions:
        asked.setdefault(each.name, ([], []))[0].append(each.mechanism)
    for each in request.upsertions:
        asked.setdefault(each.name, ([], []))[1].append(each)
    for number, (name, (removed, given)) in enumerate(asked.items()):
        told = _Altered.AlterUserScramCredentialsResult(user=name, error_message=None)
        answer.results.append(told)
        if number >= MOST_ALTERED:
            told.error_code = ErrorCode.POLICY_VIOLATION
            told.error_message = f"one request changes {MOST_ALTERED} users: ask in several"
            continue
        try:
            change = _change(name, removed, given)
        except _RefusedError as error:
            told.error_code, told.error_message = error.code, str(error)
            continue
        done = await ask(client, change, until, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
        told.error_code, told.error_message = done.error, done.message or None
    await seen(client)
    return answer


class _RefusedError(Exception):
    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


def _change(name: str, removed: list[int], given: list[Struct]) -> m.AlterUserRequest:
    if not name:
        raise _RefusedError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "the name of a user is empty")
    numbers = removed + [each.mechanism for each in given]
    if len(set(numbers)) < len(numbers):
        raise _RefusedError(
            ErrorCode.DUPLICATE_RESOURCE, f"a mechanism of user {name!r} is to be changed twice"
        )
    for number in numbers:
        if number not in _NUMBERS:
            raise _RefusedError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"there is no mechanism {number}")
    if not all(each.salted_password for each in given):
        raise _RefusedError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL, f"the salted password of user {name!r} is empty"
        )
    return m.AlterUserRequest(
        name=name,
        credentials=_credentials(given),
        remove=[_NUMBERS[number] for number in removed],
    )


def _credentials(given: list[Struct]) -> dict[str, scram.ScramCredential]:
    made = {}
    for each in given:
        mechanism = _NUMBERS[each.mechanism]
        made[mechanism] = scram.credential(mechanism, each.salted_password, each.salt, each.iterations)
    return made


OFFERS = (
    Offer(Api.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, describe),
    Offer(Api.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, alter),
)
