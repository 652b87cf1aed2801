"""Users, as the metadata store keeps them: what is kept of their passwords, and what they may do.

A user may log in where a listener asks for a name and a password. `allow` is a rule about this user, `client/NAME`,
that holds on every node beside the rules of the node; None: there is no such rule.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import ErrorCode
from ..messages import AlterUserRequest
from ..scram import HASHES, LEAST_ITERATIONS, LEAST_SALT, MOST_ITERATIONS, MOST_SALT, ScramCredential
from .records import UserRecord
from .topics import TopicError

OPERATIONS = ("produce", "consume", "admin")
"""The operations that `allow` of a user may name."""
LONGEST_NAME = 249
"""Bytes."""
NEW, KNOWN = "new", "known"
_KEY_BYTES: Mapping[str, int] = {"sha256": 32, "sha512": 64}


def changed(request: AlterUserRequest, known: UserRecord | None) -> UserRecord | None:
    """The user's record after a request; None: the user is deleted.

    Raises:
      TopicError: The name or a credential cannot be, the user exists already, or there is none.
    """
    _check(request)
    if request.expects == KNOWN and known is None:
        raise TopicError(ErrorCode.RESOURCE_NOT_FOUND, f"there is no user {request.name!r}")
    missing = [each for each in request.remove if known is None or each not in known.credentials]
    if missing and request.expects != KNOWN:
        raise TopicError(
            ErrorCode.RESOURCE_NOT_FOUND, f"user {request.name!r} has no {missing[0]} credential"
        )
    credentials = {**(known.credentials if known is not None else {}), **request.credentials}
    allow = known.allow if known is not None else None
    if request.allow is not None:
        allow = tuple([each for each in OPERATIONS if each in request.allow])
    elif request.any_operation:
        allow = None
    made = UserRecord(
        name=request.name,
        credentials={name: kept for name, kept in sorted(credentials.items()) if name not in request.remove},
        allow=allow,
    )
    # A client that was not answered asks again, with the same random salt.
    if request.expects == NEW and known is not None and known != made:
        raise TopicError(ErrorCode.DUPLICATE_RESOURCE, f"user {request.name!r} exists already")
    return made if made.credentials else None


def _check(request: AlterUserRequest) -> None:
    name = request.name
    size = len(name.encode("utf-8", "surrogatepass"))
    if not 1 <= size <= LONGEST_NAME or not name.isprintable() or "/" in name or name in (".", ".."):
        raise TopicError(
            ErrorCode.INVALID_REQUEST,
            f"{name[:LONGEST_NAME]!r} is not a valid user name: use 1 to {LONGEST_NAME} bytes of printable "
            "characters, without a slash",
        )
    for operation in request.allow or ():
        if operation not in OPERATIONS:
            raise TopicError(ErrorCode.INVALID_REQUEST, f"allow={operation!r}: use {', '.join(OPERATIONS)}")
    for mechanism in (*request.credentials, *request.remove):
        if mechanism not in HASHES:
            raise TopicError(
                ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"mechanism {mechanism!r}: use {' or '.join(HASHES)}"
            )
    if request.expects not in ("", NEW, KNOWN):
        raise TopicError(ErrorCode.INVALID_REQUEST, f"expects={request.expects!r}: use {NEW!r} or {KNOWN!r}")
    if not request.credentials and request.expects != KNOWN and not request.remove:
        raise TopicError(ErrorCode.UNACCEPTABLE_CREDENTIAL, f"user {name!r} needs a password")
    for mechanism, kept in request.credentials.items():
        flaw = why_unusable(mechanism, kept)
        if flaw:
            raise TopicError(ErrorCode.UNACCEPTABLE_CREDENTIAL, flaw)


def why_unusable(mechanism: str, kept: ScramCredential) -> str:
    """Why a credential of a known mechanism is unusable; empty if it is valid."""
    if not LEAST_ITERATIONS <= kept.iterations <= MOST_ITERATIONS:
        return f"{kept.iterations} iterations: use {LEAST_ITERATIONS} to {MOST_ITERATIONS}"
    if not LEAST_SALT <= len(kept.salt) <= MOST_SALT:
        return f"a salt of {len(kept.salt)} bytes: use {LEAST_SALT} to {MOST_SALT}"
    size, given = _KEY_BYTES[HASHES[mechanism]], (len(kept.stored_key), len(kept.server_key))
    if given != (size, size):
        return f"keys of {given[0]} and {given[1]} bytes: {mechanism} needs {size} each"
    return ""
