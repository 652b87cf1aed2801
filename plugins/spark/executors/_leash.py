"""The leash of a node, which serves as long as the driver's side lives, or until it is told to end.

A killed executor takes its Python processes with it by SIGHUP. Then, and when the connection to the directory is
lost, the node finds out what has happened. If the directory answers, only the executor is gone: the process ends
as if it had crashed, and leaves its logs to the executor that takes the slot next. If it does not answer for
some seconds, the application is gone.
"""

from __future__ import annotations

import enum
import logging

import attrs
import trio

from ....transport import Connection, Identity, Security, TransportError, connect
from ._messages import Kind, Order, Report, decode, encode

_log = logging.getLogger("insync.spark")

GRACE_SECONDS = 30.0
"""How long the directory may be silent; long enough for it to be started again on a busy machine."""
GRACE_WITHOUT_EXECUTOR_SECONDS = 5.0
"""The same, once the executor is gone: most likely because the driver is."""
_ANSWER_SECONDS = 2.0
_RETRY_SECONDS = 0.1


class End(enum.Enum):
    """Why a node ends."""

    MOVED = enum.auto()
    """It was told to leave its files: the slot goes elsewhere, or the user keeps them."""
    OVER = enum.auto()
    """It was told to remove its files."""
    ORPHANED = enum.auto()
    """The driver's side is gone."""
    EXECUTOR_LOST = enum.auto()


@attrs.define
class Leash:
    """Of one node, whose `report` the directory is to have."""

    directory: str
    security: Security
    report: Report
    hung_up: trio.Event
    """Set when the process has got SIGHUP."""

    async def hold(self) -> End:
        """Report, and wait for the end."""
        silent_since: float | None = None
        end: End | None = None
        async with trio.open_nursery() as nursery:
            while end is None:
                try:
                    connection = await self._report(nursery)
                    silent_since = None
                    end = await self._wait(connection)
                except TransportError as error:
                    _log.info("node %d: the directory does not answer: %s", self.report.slot, error)
                    now = trio.current_time()
                    silent_since = now if silent_since is None else silent_since
                    gone = self.hung_up.is_set()
                    if now - silent_since >= (GRACE_WITHOUT_EXECUTOR_SECONDS if gone else GRACE_SECONDS):
                        end = End.ORPHANED
                    else:
                        await trio.sleep(_RETRY_SECONDS)
            nursery.cancel_scope.cancel()
        assert end is not None
        return end

    async def _report(self, nursery: trio.Nursery) -> Connection:
        connection = await connect(
            self.directory,
            identity=Identity(node_id=self.report.slot),
            # Two processes of one slot do not displace each other: who is to go is told so.
            lane=f"{self.report.executor}/{self.report.pid}",
            nursery=nursery,
            security=self.security,
            timeout=_ANSWER_SECONDS,
        )
        (await connection.request(Kind.REPORT, encode(self.report), timeout=_ANSWER_SECONDS)).release()
        return connection

    async def _wait(self, connection: Connection) -> End:
        """Until there is an end; TransportError: the directory does not answer."""
        ends: list[End] = []
        failures: list[TransportError] = []
        async with trio.open_nursery() as nursery:

            async def obey() -> None:
                try:
                    with await connection.request(Kind.ORDERS, timeout=float("inf")) as response:
                        keep = decode(response.body, Order).keep
                    ends.append(End.MOVED if keep else End.OVER)
                except TransportError as error:
                    failures.append(error)
                nursery.cancel_scope.cancel()

            async def ask() -> None:
                await self.hung_up.wait()
                try:
                    (await connection.request(Kind.LOOK, timeout=_ANSWER_SECONDS)).release()
                    ends.append(End.EXECUTOR_LOST)
                except TransportError as error:
                    failures.append(error)
                nursery.cancel_scope.cancel()

            nursery.start_soon(obey)
            nursery.start_soon(ask)
        if ends:
            return ends[0]
        raise failures[0]
