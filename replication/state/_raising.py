"""Versions of the code: copies tell theirs, answer roll calls, and raise the topic's when all of them have it."""

from __future__ import annotations

import logging
from functools import partial

import trio

from ..client.errors import ClientError
from ..core.types import Value
from ._applying import Applier
from ._applying import Session as Known
from ._copy import Copy
from ._entries import Call, Close, Digest, Raise
from ._keeper import chunks_of
from ._session import Session
from ._snapshots import Pieces
from .errors import MigrationError, VersionNotRaisedError

log = logging.getLogger("insync.state")

RAISED: dict[str, Value] = {"retention_ms": (1 << 63) - 1}
"""Of a topic with a version above 1. It keeps as much as -1, on which releases without versions insist: they would
pass over what raises the version, so they must not open the topic."""
_MOST_WAITS = 8
_MOST_NAMED = 5
_PAUSE = 1.0


class Raiser:
    """Of one copy. A copy with a lower version that does not answer a roll call within a keeper's lease is gone."""

    def __init__(self, copy: Copy, session: Session) -> None:
        self._copy = copy
        self._session = session
        self._lease = copy.settings.keeper_lease_ms / 1000
        self._called, self._heard, self._waits = -1, 0.0, 1
        """The newest roll call, when it came to this copy, and how many leases the answers have."""
        self.error: MigrationError | None = None
        """Why this copy does not raise the version."""

    async def begin(self) -> None:
        """Tell the version of this copy, and raise the topic's if no copy has a lower one."""
        await self._session.join()
        while self._wants_to_raise() and not self._behind() and await self._try():
            pass

    async def run(self) -> None:
        """Look after each turn whether something is due; for ever."""
        while self._copy.error is None and self._session.error is None:
            if not await self._try():
                await trio.sleep(_PAUSE)

    async def _try(self) -> bool:
        """Do what is due, or wait for it; whether it could be done."""
        try:
            if not self._session.has_joined:
                await self._session.join()
            elif self._wants_to_raise():
                await self._raise_if_ready()
            else:
                await self._copy.moved()
        except MigrationError as error:
            self.error = error
            log.error("%s: the version is not raised: %s", self._copy.at, error)
        except ClientError as error:
            if self._copy.error is None and self._session.error is None:
                log.warning("%s: the version is not raised for now: %s", self._copy.at, error)
            return False
        return True

    def _wants_to_raise(self) -> bool:
        applier = self._copy.applier
        return self._copy.settings.raise_version and self.error is None and applier.version < applier.code[1]

    def _behind(self) -> dict[str, Known]:
        found = self._copy.applier.behind(self._copy.applier.code[1])
        found.pop(self._session.name, None)
        return found

    def _left(self) -> float:
        """Seconds that copies still have for an answer to the newest roll call."""
        applier, now = self._copy.applier, trio.current_time()
        if applier.called != self._called:
            self._called, self._heard = applier.called, now
        return self._heard + self._lease * self._waits - now if self._called >= 0 else 0.0

    def _is_ready(self) -> bool:
        left, behind = self._left(), self._behind().values()
        # Releases without versions answer no roll call: such a copy counts as long as its session is there.
        return not behind or (
            left <= 0 and all(each.version and each.joined < self._called for each in behind)
        )

    async def _raise_if_ready(self) -> None:
        if self._is_ready():
            await self._prepare()
            if self._is_ready():
                await self._raise()
        elif (left := self._left()) > 0:
            with trio.move_on_after(left):
                await self._copy.moved()
        else:
            self._waits = min(2 * self._waits, _MOST_WAITS) if self._called >= 0 else 1
            before = self._called
            call = Call(self._session.copy_name)
            await self._session.send_until_applied(call, lambda: self._copy.applier.called > before)

    async def raise_now(self) -> None:
        """See `Replica.raise_version`."""
        await self._session.join()
        while self._copy.applier.version < self._copy.applier.code[1]:
            await self._prepare()
            await self._raise()

    async def _prepare(self) -> None:
        """Migrate a second machine: what fails in the log stops all copies, and here only the raise."""
        copy = self._copy
        chunks = await chunks_of(copy.applier)
        second = Applier(copy.make(), copy.topic_id)
        try:
            second.restore(Pieces(chunks).read)
        except Exception as error:
            raise MigrationError(
                f"the migration to version {second.code[1]} cannot be tried, as restoring the state raised "
                f"{error!r:.200}: correct the state machine, and start this copy again"
            ) from error
        second.migrate(second.code[1], second.position, second.clock_ms)
        if copy.applier.version == 1:
            await copy.admin.alter_config(copy.at.topic, RAISED)

    async def _raise(self) -> None:
        """Close the sessions of lower versions, and raise the version unless another copy has come meanwhile."""
        copy, seen = self._copy, self._copy.applier.position
        at = max(copy.digests, default=None) if copy.applier.version == 1 else None
        for name, known in self._behind().items():
            await self._session.send_until_applied(
                Close(name, known.token), partial(self._is_closed, name, known.token)
            )
        offset = await self._session.send_once(Raise(*copy.applier.code, seen))
        if offset is not None:
            await copy.wait_until(offset + 1)
        if copy.applier.version > 1 and at is not None:
            # A copy of a release without versions passes over the raise, and is stopped by a digest that differs.
            # Others do not compare it: at an offset of before the raise theirs is of version 1.
            await self._session.send_once(Digest(at, copy.applier.digest(), self._session.copy_name))

    def _is_closed(self, name: str, token: int) -> bool:
        known = self._copy.applier.sessions.get(name)
        return known is None or known.token != token

    def not_raised(self, what: str, needed: int) -> VersionNotRaisedError:
        """Why `what` cannot be called yet, and what to do."""
        applier = self._copy.applier
        behind = {name: each.version for name, each in applier.behind(needed).items()}
        told = [f"{name!r} ({f'version {each}' if each else 'untold'})" for name, each in behind.items()]
        if self.error is not None:
            why = str(self.error)
        elif told:
            more = f" and {len(told) - _MOST_NAMED} more" if len(told) > _MOST_NAMED else ""
            why = (
                f"it waits for the copies {', '.join(told[:_MOST_NAMED])}{more}: restart them with code of version "
                f"{needed}, or call raise_version() if they are gone"
            )
        elif self._copy.settings.raise_version:
            why = "it is being raised: try again"
        else:
            why = "call raise_version(), as raise_version=False leaves it to you"
        error = VersionNotRaisedError(
            f"{what} needs version {needed} of {applier.code[0]!r}, and {self._copy.at} has version "
            f"{applier.version}; {why}"
        )
        error.needed, error.topic_version, error.waits_for = needed, applier.version, behind
        return error
