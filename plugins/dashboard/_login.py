"""Who logs in: the users of the cluster, by name and password, or those who know the one password of a file."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable
from typing import Protocol

import attrs

from ...replication.asyncio import Admin
from ...replication.client import ClientError
from ...replication.core.messages import UserInfo
from ...replication.errors import ReplicationError
from ...transport import TransportError

SESSION_SECONDS = 8 * 3600.0
WRONG_SECONDS = 1.0
"""For which the answer to a wrong password is kept back; the others wait in line."""
MOST_WAITING = 20
LONGEST = 1024
"""Bytes of a name and of a password."""


class LoginError(ReplicationError):
    """Nobody was logged in, and why."""


@attrs.define(kw_only=True, eq=False)
class Login:
    """Somebody who has logged in. operations: of `consume`, `produce`, `admin`.

    user: as the cluster knew the user then; None for somebody who knows the one password.
    """

    name: str
    operations: frozenset[str]
    user: UserInfo | None = None
    since: float = attrs.Factory(time.monotonic)

    def may(self, operation: str) -> bool:
        return operation in self.operations

    @property
    def is_over(self) -> bool:
        return time.monotonic() - self.since > SESSION_SECONDS

    async def check(self, admin: Admin | None, operation: str) -> None:
        """Look again before something is done: a user may have been deleted since, or be allowed less.

        Raises:
          LoginError: The user may not do it now.
          ReplicationError: The cluster does not say.
        """
        if self.user is None:
            return
        if admin is None:
            raise LoginError("the cluster does not answer: nobody can say what a user may do")
        known = await _user(admin, self.name)
        if known is None:
            raise LoginError(f"there is no user {self.name!r} any more")
        if known.allow != self.user.allow:
            raise LoginError(f"what user {self.name!r} may do has changed: log out, and log in again")
        if not self.may(operation):
            raise LoginError(f"user {self.name!r} may not {operation}")


async def _user(admin: Admin, name: str) -> UserInfo | None:
    return next((each for each in await admin.list_users() if each.name == name), None)


class Door(Protocol):
    """What the guard asks. names: whether one has a name, or a password alone."""

    names: bool

    async def enter(self, name: str, password: str) -> Login:
        """Raises `LoginError`."""
        ...


class PasswordDoor:
    """One password for all."""

    names = False

    def __init__(self, password: str) -> None:
        self._password = password.encode()

    async def enter(self, name: str, password: str) -> Login:
        if not hmac.compare_digest(password.encode(), self._password):
            raise LoginError("That is not the password.")
        everything = frozenset({"consume", "produce", "admin"})
        return Login(name="somebody", operations=everything)


class UserDoor:
    """The users of the cluster who may consume; a node checks their passwords. One after the other."""

    names = True

    def __init__(self, admin: Callable[[], Admin | None]) -> None:
        self._admin = admin
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def enter(self, name: str, password: str) -> Login:
        if self._waiting >= MOST_WAITING:
            raise LoginError("Too many want to log in at once: try again in a while.")
        self._waiting += 1
        try:
            async with self._turn:
                return await self._verified(name, password)
        finally:
            self._waiting -= 1

    async def _verified(self, name: str, password: str) -> Login:
        admin = self._admin()
        if admin is None:
            raise LoginError("The cluster does not answer: nobody can log in now.")
        try:
            verified = await admin.verify_user(name, password) if 0 < len(name) <= LONGEST else None
            user = await _user(admin, name) if verified else None
        except (ClientError, TransportError) as error:
            raise LoginError(f"The cluster cannot say: {error}") from error
        if not verified or user is None:
            await asyncio.sleep(WRONG_SECONDS)
            raise LoginError("There is no such user, or that is not the password.")
        if "consume" not in verified.operations:
            raise LoginError(f"User {name!r} may not consume, and so see nothing here.")
        return Login(name=name, operations=verified.operations, user=user)
