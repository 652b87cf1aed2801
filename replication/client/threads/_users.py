"""`BlockingAdmin`: its part about users."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from ..._portal import Held
from ...core.messages import UserInfo
from ...core.scram import ITERATIONS
from ..admin import Admin
from ..admin._users import MECHANISMS, Verified


class BlockingUserAdmin(Held[Admin]):
    """Users; a part of `BlockingAdmin`."""

    def create_user(
        self,
        name: str,
        password: str,
        *,
        allow: Iterable[str] | None = None,
        mechanisms: Sequence[str] = MECHANISMS,
        iterations: int = ITERATIONS,
    ) -> None:
        """See `Admin.create_user`."""
        self._portal.call(
            lambda: self._held.create_user(
                name, password, allow=allow, mechanisms=mechanisms, iterations=iterations
            )
        )

    def alter_user(
        self,
        name: str,
        *,
        password: str | None = None,
        allow: Iterable[str] | Literal["any"] | None = None,
        mechanisms: Sequence[str] = MECHANISMS,
        iterations: int = ITERATIONS,
    ) -> None:
        """See `Admin.alter_user`."""
        self._portal.call(
            lambda: self._held.alter_user(
                name, password=password, allow=allow, mechanisms=mechanisms, iterations=iterations
            )
        )

    def delete_user(self, name: str) -> None:
        """See `Admin.delete_user`."""
        self._portal.call(lambda: self._held.delete_user(name))

    def list_users(self) -> list[UserInfo]:
        """See `Admin.list_users`."""
        return self._portal.call(self._held.list_users)

    def verify_user(self, name: str, password: str) -> Verified:
        """See `Admin.verify_user`."""
        return self._portal.call(lambda: self._held.verify_user(name, password))
