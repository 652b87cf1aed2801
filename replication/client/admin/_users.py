"""The users of a cluster: who may log in, and what each may do."""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Literal

import attrs
import trio

from ...core import messages as m
from ...core import scram
from ...core.control import users as rules
from ...core.messages import UserInfo
from .. import _arguments as given
from .. import user_errors  # noqa: F401 - makes its error codes known
from ..errors import InvalidArgumentError, RequestTimeoutError
from ._operations import OperationsAdmin

MECHANISMS = tuple(scram.HASHES)


@attrs.frozen(kw_only=True)
class Verified:
    """Whether a password is right, and what its user may do: of `produce`, `consume`, `admin`, `store`."""

    verified: bool
    operations: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return self.verified


class UserAdmin(OperationsAdmin):
    """Users; a part of `Admin`.

    The cluster keeps salted hashes of passwords (SCRAM), which are made here: nodes are never sent a password, but
    by `verify_user`.
    """

    _revision: int

    @property
    @abstractmethod
    def _timeout(self) -> float: ...

    async def create_user(
        self,
        name: str,
        password: str,
        *,
        allow: Iterable[str] | None = None,
        mechanisms: Sequence[str] = MECHANISMS,
        iterations: int = scram.ITERATIONS,
    ) -> None:
        """Create a user, who may log in where nodes listen for other protocols.

        Args:
          name: Up to 249 bytes of printable characters, without a slash.
          password: A text of 1 to 1,024 bytes.
          allow: What the user may do, of `produce`, `consume`, `admin`: a rule `client/NAME=...` that holds on
            every node, beside those of the node's settings. None: there is no rule about this user alone.
          mechanisms: By which the user may log in: `SCRAM-SHA-256`, `SCRAM-SHA-512`.
          iterations: How often the password is hashed, 4,096 to 16,384: guessing it costs that much, and so does
            each login.

        Raises:
          UserExistsError: There is a user of that name.
          InvalidRequestError: The name cannot be.
          UnacceptableCredentialError: So many iterations cannot be.
          RequestTimeoutError: No controller answered in time; the user may exist nevertheless.
        """
        hashing = _Hashing.given(mechanisms, iterations)
        request = m.AlterUserRequest(
            name=given.text("name", name),
            allow=_operations(allow),
            credentials=await hashing.credentials(_password(password)),
            expects=rules.NEW,
        )
        await self._change(request, f"user {name!r}")

    async def alter_user(
        self,
        name: str,
        *,
        password: str | None = None,
        allow: Iterable[str] | Literal["any"] | None = None,
        mechanisms: Sequence[str] = MECHANISMS,
        iterations: int = scram.ITERATIONS,
    ) -> None:
        """Change a user's password, or what the user may do; what is not given stays as it is.

        A new password holds for the mechanisms that are given, and the others are taken away: the former password
        opens nothing. Clients that are logged in stay so.

        Args:
          allow: As in `create_user`; `"any"` takes the rule about this user away.

        Raises:
          UserNotFoundError: The user does not exist.
          InvalidRequestError, UnacceptableCredentialError, RequestTimeoutError: As in `create_user`.
        """
        hashing = _Hashing.given(mechanisms, iterations)
        request = m.AlterUserRequest(
            name=given.text("name", name),
            allow=None if allow == "any" else _operations(allow),
            any_operation=allow == "any",
            credentials={} if password is None else await hashing.credentials(_password(password)),
            remove=[]
            if password is None
            else [each for each in MECHANISMS if each not in hashing.mechanisms],
            expects=rules.KNOWN,
        )
        await self._change(request, f"user {name!r}")

    async def delete_user(self, name: str) -> None:
        """Delete a user. Clients logged in as this user may do nothing from then on.

        Raises:
          UserNotFoundError: The user does not exist.
          RequestTimeoutError: No controller answered in time; the user may be gone nevertheless.
        """
        request = m.AlterUserRequest(
            name=given.text("name", name), remove=list(MECHANISMS), expects=rules.KNOWN
        )
        await self._change(request, f"user {name!r}")

    async def list_users(self) -> list[UserInfo]:
        """All users by name, with the mechanisms by which they may log in; nothing of their passwords.

        Raises:
          RequestTimeoutError: No node answered in time.
        """
        self._check_open()
        with trio.move_on_after(self._timeout):
            attempt = 0
            while True:
                answer: m.DescribeUsersResponse = await self._cluster.ask(
                    m.Kind.DESCRIBE_USERS, m.DescribeUsersRequest(), timeout=self._timeout
                )
                # A node that has not read what this client has changed is not believed.
                if answer.revision >= self._revision:
                    return answer.users
                attempt += 1
                await trio.sleep(self._cluster.quick_backoff(attempt))
        raise RequestTimeoutError(
            "users: no node answered in time that has read this client's last change; try again"
        )

    async def verify_user(self, name: str, password: str) -> Verified:
        """Whether this is the password of a user, and what the user may do: for services with a login of their own.

        A node checks it: the password goes to the node, protected as the client's connection is. A user that does
        not exist is answered as a wrong password is, and as late.

        Raises:
          AuthorizationError: This client may not ask: it needs `admin`.
          RequestTimeoutError: No node answered in time.
        """
        request = m.VerifyUserRequest(
            name=given.text("name", name), password=given.text("password", password)
        )
        self._check_open()
        answer: m.VerifyUserResponse = await self._cluster.ask(
            m.Kind.VERIFY_USER, request, timeout=self._timeout
        )
        return Verified(verified=answer.verified, operations=frozenset(answer.operations))


@attrs.frozen(kw_only=True)
class _Hashing:
    """How a password is to be kept."""

    mechanisms: tuple[str, ...]
    iterations: int

    @classmethod
    def given(cls, mechanisms: Sequence[str], iterations: int) -> _Hashing:
        wanted = given.names("mechanisms", mechanisms)
        if not wanted or any(each not in MECHANISMS for each in wanted):
            raise given.refused("mechanisms", mechanisms, f"name some of {', '.join(MECHANISMS)}")
        least, most = scram.LEAST_ITERATIONS, scram.MOST_ITERATIONS
        return cls(
            mechanisms=tuple(dict.fromkeys(wanted)),
            iterations=given.whole("iterations", iterations, least=least, most=most),
        )

    async def credentials(self, password: str) -> dict[str, scram.ScramCredential]:
        made = {}
        for mechanism in self.mechanisms:
            salt = secrets.token_bytes(scram.SALT_BYTES)
            made[mechanism] = await trio.to_thread.run_sync(
                scram.derive, mechanism, password, salt, self.iterations
            )
        return made


def _password(value: str, *, least: int = 1) -> str:
    """A password that can be hashed; what was given instead is in no message, it may be one."""
    try:
        if isinstance(value, str) and least <= len(value.encode()) <= scram.LONGEST_PASSWORD:
            return value
    except UnicodeEncodeError:
        pass
    raise InvalidArgumentError(
        f"password must be a string of 1 to {scram.LONGEST_PASSWORD} bytes, without lone surrogates"
    )


def _operations(allow: Iterable[str] | None) -> list[str] | None:
    if allow is None:
        return None
    wanted = given.names("allow", allow)
    for each in wanted:
        if each not in rules.OPERATIONS:
            raise given.refused("allow", each, f"name some of {', '.join(rules.OPERATIONS)}")
    return wanted
