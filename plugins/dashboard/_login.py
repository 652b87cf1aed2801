"""Logins: of the cluster's users, by name and password, or of those who know the one password of a file."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Collection
from typing import Protocol

import attrs

from ...replication.asyncio import Admin
from ...replication.client import ClientError
from ...replication.core.messages import UserInfo
from ...replication.errors import ReplicationError
from ...transport import TransportError

SESSION_SECONDS = 8 * 3600.0
LONGEST = 1024
"""Bytes of a name and of a password."""


class LoginError(ReplicationError):
    """Nobody was logged in, and why."""


class WrongPasswordError(LoginError):
    """The password is not that of the name: whoever guesses is to be slow at it."""


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
    def left(self) -> float:
        """Seconds until the session ends by itself; not above 0 once it has."""
        return self.since + SESSION_SECONDS - time.monotonic()

    async def check(self, admin: Admin | None, operation: str) -> None:
        """Look again before something is done: a user may have been deleted since, or be allowed less.

        Raises:
          LoginError: The user may not do it now.
          ReplicationError: The cluster does not say.
        """
        if self.user is None:
            return
        if admin is None:
            raise LoginError("the cluster does not answer, so the user's rights are unknown: try again")
        known = await _user(admin, self.name)
        if known is None:
            raise LoginError(f"user {self.name!r} was deleted")
        if known != self.user:
            raise LoginError(f"user {self.name!r} was changed: log out, and log in again")
        if not self.may(operation):
            raise LoginError(f"user {self.name!r} may not {operation}")


async def _user(admin: Admin, name: str) -> UserInfo | None:
    return next((each for each in await admin.list_users() if each.name == name), None)


class Door(Protocol):
    """The guard asks it. names: whether a login has a name, or a password alone."""

    names: bool

    async def enter(self, name: str, password: str) -> Login:
        """Raises `WrongPasswordError`, or `LoginError` for what else is in the way."""
        ...

    async def changed(self, logins: Collection[Login]) -> Collection[Login]:
        """Those of them whose users are not what they were when they logged in.

        Raises what a client raises where the cluster does not say.
        """
        ...


class PasswordDoor:
    """One password for all."""

    names = False

    def __init__(self, password: str) -> None:
        self._password = password.encode()

    async def enter(self, name: str, password: str) -> Login:
        if not hmac.compare_digest(password.encode(), self._password):
            raise WrongPasswordError("Wrong password.")
        everything = frozenset({"consume", "produce", "admin"})
        return Login(name="somebody", operations=everything)

    async def changed(self, logins: Collection[Login]) -> Collection[Login]:
        return ()


class UserDoor:
    """The users of the cluster who may consume; a node checks their passwords."""

    names = True

    def __init__(self, admin: Callable[[], Admin | None]) -> None:
        self._admin = admin

    async def enter(self, name: str, password: str) -> Login:
        admin = self._admin()
        if admin is None:
            raise LoginError("The cluster does not answer, so nobody can log in: try again later.")
        try:
            verified = await admin.verify_user(name, password) if 0 < len(name) <= LONGEST else None
            user = await _user(admin, name) if verified else None
        except (ClientError, TransportError) as error:
            raise LoginError(f"The cluster cannot check the password: {error}") from error
        if not verified or user is None:
            raise WrongPasswordError("Unknown user, or wrong password.")
        if "consume" not in verified.operations:
            raise LoginError(
                f"User {name!r} may not consume, which this dashboard requires: add a rule with consume."
            )
        return Login(name=name, operations=verified.operations, user=user)

    async def changed(self, logins: Collection[Login]) -> Collection[Login]:
        admin = self._admin()
        if admin is None:
            return ()
        known = {each.name: each for each in await admin.list_users()}
        return [each for each in logins if known.get(each.name) != each.user]
