"""`Admin` of asyncio: its part about users."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from ..client import Admin as TrioAdmin
from ..client.admin._users import MECHANISMS, Verified
from ..core.messages import UserInfo
from ..core.scram import ITERATIONS
from ._bridge import Bridge


class UserAdmin(Bridge[TrioAdmin]):
    """Users; a part of `Admin`."""

    async def create_user(
        self,
        name: str,
        password: str,
        *,
        allow: Iterable[str] | None = None,
        mechanisms: Sequence[str] = MECHANISMS,
        iterations: int = ITERATIONS,
    ) -> None:
        """See `insync.replication.Admin.create_user`."""
        await self._call(
            lambda: self._held.create_user(
                name, password, allow=allow, mechanisms=mechanisms, iterations=iterations
            )
        )

    async def alter_user(
        self,
        name: str,
        *,
        password: str | None = None,
        allow: Iterable[str] | Literal["any"] | None = None,
        mechanisms: Sequence[str] = MECHANISMS,
        iterations: int = ITERATIONS,
    ) -> None:
        """See `insync.replication.Admin.alter_user`."""
        await self._call(
            lambda: self._held.alter_user(
                name, password=password, allow=allow, mechanisms=mechanisms, iterations=iterations
            )
        )

    async def delete_user(self, name: str) -> None:
        """See `insync.replication.Admin.delete_user`."""
        await self._call(lambda: self._held.delete_user(name))

    async def list_users(self) -> list[UserInfo]:
        """See `insync.replication.Admin.list_users`."""
        return await self._call(self._held.list_users)

    async def verify_user(self, name: str, password: str) -> Verified:
        """See `insync.replication.Admin.verify_user`."""
        return await self._call(lambda: self._held.verify_user(name, password))
