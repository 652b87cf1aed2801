"""The cluster's users on a node: who they are, what each may do."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio

from ...core import messages as m
from ...core import scram
from ...core.control.records import UserRecord
from ...core.control.users import why_unusable
from ...core.control.view import ClusterView
from ...core.errors import ErrorCode
from ...metadata import MetadataError
from ..service import ServiceError
from .authorisation import CLIENTS, Operation

AT_ONCE = 2
"""Passwords that are hashed at a time: the others wait, and clients that are served do not notice."""
MOST_WAITING = 1_000
"""Logins that wait for that, or for the metadata store; more are refused at once."""
CONFIRM_SECONDS = 1.0
"""How long a login waits for the metadata store. If that is out of reach, what the node knows decides."""


class Users:
    """Checks names and passwords. A name that does not exist is answered as a wrong password is."""

    def __init__(self, view: Callable[[], ClusterView], confirm: Callable[[], Awaitable[None]]) -> None:
        """confirm: brings the view up to the time of the call."""
        self._view = view
        self._confirm = confirm
        self._hashing = trio.CapacityLimiter(AT_ONCE)
        self._logins = 0
        """By password, under way: those that wait for the metadata store as well."""
        self._secret = secrets.token_bytes(32)

    def exists(self, name: str) -> bool:
        """See `UserRules`."""
        return self._find(name) is not None

    def rule_of(self, name: str) -> frozenset[Operation] | None:
        """See `UserRules`."""
        user = self._find(name)
        if user is None or user.allow is None:
            return None
        # A node that knows fewer operations than the one that took the request grants fewer.
        known = {operation.value: operation for operation in CLIENTS}
        return frozenset(known[each] for each in user.allow if each in known)

    async def credential(self, name: str, mechanism: str) -> scram.ScramCredential:
        """See `NodeService.credential`."""
        await self._look()
        return self._kept(name, (mechanism,))[1]

    async def verify(self, name: str, password: str) -> bool:
        """See `NodeService.verify_user`."""
        if self._logins >= AT_ONCE + MOST_WAITING:
            raise ServiceError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{MOST_WAITING} logins wait already at this node: try again later",
            )
        self._logins += 1
        try:
            return await self._verified(name, password)
        finally:
            self._logins -= 1

    async def _verified(self, name: str, password: str) -> bool:
        await self._look()
        mechanism, credential = self._kept(name, tuple(scram.HASHES))
        return await trio.to_thread.run_sync(
            scram.is_password, mechanism, credential, password, limiter=self._hashing
        )

    def _kept(self, name: str, mechanisms: tuple[str, ...]) -> tuple[str, scram.ScramCredential]:
        """The first of the mechanisms that a user has, and its credential; else one that looks like the others'.

        It is made up for every name, so that the time tells as little as the answer.
        """
        view = self._view()
        known: dict[str, tuple[str, scram.ScramCredential]] = {}
        for each, (user, _) in view.users.items():
            usable = _usable(user)
            if first := next((mechanism for mechanism in mechanisms if mechanism in usable), ""):
                known[each] = first, usable[first]
        secret = view.secret.encode() or self._secret
        made_up = scram.made_up(mechanisms[0], name, secret, known.values())
        return known.get(name, made_up)

    def describe(self, request: m.DescribeUsersRequest) -> m.DescribeUsersResponse:
        """Users, without what their passwords can be guessed by."""
        view = self._view()
        names = sorted(view.users if request.names is None else set(request.names))
        return m.DescribeUsersResponse(
            users=[_info(name, self._find(name)) for name in names], revision=view.revision
        )

    def _find(self, name: str) -> UserRecord | None:
        return self._view().users.get(name, (None, 0))[0]

    async def _look(self) -> None:
        """Make every user known that was made or changed before the call, if the store can be read."""
        with trio.move_on_after(CONFIRM_SECONDS):
            with suppress(MetadataError):
                await self._confirm()


def _usable(user: UserRecord | None) -> dict[str, scram.ScramCredential]:
    """By what a user may log in here. The store may hold anything: a mechanism of a later release, or so many
    iterations that hashing one password would not end.
    """
    if user is None:
        return {}
    known = {mechanism: kept for mechanism, kept in user.credentials.items() if mechanism in scram.HASHES}
    return {mechanism: kept for mechanism, kept in known.items() if not why_unusable(mechanism, kept)}


def _info(name: str, user: UserRecord | None) -> m.UserInfo:
    if user is None:
        return m.UserInfo(name=name, mechanisms={})
    return m.UserInfo(
        name=name,
        mechanisms={mechanism: kept.iterations for mechanism, kept in _usable(user).items()},
        allow=None if user.allow is None else list(user.allow),
        mark=_mark(user),
    )


def _mark(user: UserRecord) -> str:
    """Of the salts alone, which are drawn for each password and told to everybody who begins to log in."""
    salts = sorted((mechanism, kept.salt) for mechanism, kept in user.credentials.items())
    return hashlib.sha256(repr(salts).encode()).hexdigest()[:16]
