"""Keeps looking at a cluster: one task for all browsers, however many pages are open."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

from ...replication.asyncio import Admin
from ...replication.client import ClientError, GroupDescription, GroupIdNotFoundError, GroupListing
from ...replication.client.admin._transactions import HANGS_AFTER_MS
from ...transport import TransportError
from ._changes import ChangeLog
from ._findings import Finding, findings
from ._history import History
from ._look import Look, Told
from ._transactions import Transactions

log = logging.getLogger("insync.dashboard")

CHANGES_EVERY = 0.5
LOOK_EVERY = 1.0
"""Seconds between two looks; longer where a look itself takes long."""
GROUPS_EVERY = 2.0
TRANSACTIONS_EVERY = 2.0
SEARCH_EVERY = 60.0
"""Seconds between two searches for hanging transactions; they ask for the producers of every partition."""
MOST_GROUPS = 100
"""Groups that are described at each look; of the others the names are shown."""
SHARE = 0.2
"""A look may take this part of the time: of 10,000 partitions one takes a second, so there is one each five."""
ANSWER_MS, MOST_ANSWER_MS = 3_000, 30_000
"""Milliseconds that a node has to answer in a look: at first, and at most, where the last look took long."""
MOST_PAUSE = 30.0
SLOW = 5.0
"""Seconds that a look may take before the pages say so."""
LATE = 0.5
"""Seconds after which the answer to a request that costs a node next to nothing is late."""


class Watcher:
    """The knowledge of one cluster. `run` keeps it new until it is cancelled; everything else only reads."""

    def __init__(
        self,
        servers: str,
        connect: Callable[[str], Admin] | None = None,
        *,
        hangs_after_ms: int = HANGS_AFTER_MS,
    ) -> None:
        self.servers = servers
        self.hangs_after_ms = hangs_after_ms
        self.transactions = Transactions()
        self._connect = connect or (lambda servers: Admin(servers, request_timeout_ms=ANSWER_MS * 2))
        self.look: Look | None = None
        self.changes = ChangeLog()
        self.history = History()
        self.findings: list[Finding] = []
        self.groups: dict[str, GroupDescription] = {}
        self.group_names: list[GroupListing] = []
        self.groups_error = ""
        """Why groups could not be asked for; empty while all is well."""
        self.error = ""
        """Why the newest look failed; empty while all is well."""
        self.failing_since = 0.0
        self.slow_since = 0.0
        """When the look that is under way was begun, if it has taken longer than `SLOW`; else 0."""
        self._looking = asyncio.Lock()
        """One look at a time: of two, the older could end last."""
        self._begun = 0.0
        """When the newest look was begun, by the monotonic clock."""
        self._first_answer = 0.0
        """Seconds that the first answer of the last look took; what it asks for does not grow with partitions."""
        self.version = 0
        """Grows whenever there is something new to show."""
        self.admin: Admin | None = None

    async def run(self) -> None:
        """Look again and again. A request that fails is told on the pages, and tried again."""
        while True:
            try:
                async with AsyncExitStack() as stack:
                    self.admin = await stack.enter_async_context(self._connect(self.servers))
                    async with asyncio.TaskGroup() as group:
                        group.create_task(self._keep_looking(self.admin))
                        group.create_task(self._keep_asking(self.admin))
                        group.create_task(self._keep_listing_groups(self.admin))
                        group.create_task(self._keep_listing_transactions(self.admin))
                        group.create_task(self._keep_searching(self.admin))
            except* (ClientError, TransportError) as failures:
                self._failed(failures.exceptions[0])
            finally:
                self.admin = None
            await asyncio.sleep(LOOK_EVERY)

    def _failed(self, failure: BaseException) -> None:
        while isinstance(failure, BaseExceptionGroup):
            failure = failure.exceptions[0]
        if not self.error:
            self.failing_since = time.time()
            log.warning("the cluster does not answer: %s", failure)
        self.error = str(failure)
        self.version += 1

    async def _keep_looking(self, admin: Told) -> None:
        while True:
            took = 0.0
            try:
                took = await self.look_once(admin)
            except (ClientError, TransportError) as failure:
                self._failed(failure)
            await self._pause(admin, min(MOST_PAUSE, max(LOOK_EVERY, took / SHARE)))

    async def _pause(self, admin: Told, seconds: float) -> None:
        """Until the next look is due, or until a cluster that answered late answers quickly again."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(left, LOOK_EVERY))
            if self._first_answer > LATE:
                started = time.monotonic()
                try:
                    await admin.describe_cluster()
                except (ClientError, TransportError):
                    return  # the next look tells why
                if time.monotonic() - started < self._first_answer / 4:
                    return

    async def look_once(self, admin: Told) -> float:
        """One reading; gives how many seconds it took. Raises what the client raises."""
        async with self._looking:
            return await self._look(admin)

    async def fresh(self, admin: Told) -> Look:
        """A look that was begun after this was asked for. Raises what the client raises.

        Pages may show a state of some seconds ago; a plan has to rest on the present one.
        """
        asked = time.monotonic()
        async with self._looking:
            if self._begun <= asked:
                await self._look(admin)
            assert self.look is not None
            return self.look

    async def _look(self, admin: Told) -> float:
        slow = asyncio.get_running_loop().call_later(SLOW, self._slow, time.time())
        try:
            return await self._look_once(admin)
        finally:
            slow.cancel()
            self.slow_since = 0.0

    def _slow(self, since: float) -> None:
        self.slow_since = since
        self.version += 1

    async def _look_once(self, admin: Told) -> float:
        started = time.monotonic()
        # What took long last time is given time: a node that describes 10,000 partitions under load is not silent.
        # There is an end to it: a node that stays silent would have each look wait four times as long as the last.
        took = self.look.took if self.look is not None else 0.0
        patience = min(MOST_ANSWER_MS, ANSWER_MS + int(4000 * took))
        cluster = await admin.describe_cluster()
        self._first_answer = time.monotonic() - started
        topics, reports, health = await asyncio.gather(
            admin.describe_topics(),
            admin.describe_replicas(timeout_ms=patience),
            admin.describe_nodes(timeout_ms=patience),
        )
        took = time.monotonic() - started
        self.look = look = Look.of(time.time(), took, cluster, topics, reports, health)
        self._begun = started
        self.history.add(look)
        self.findings = findings(look, self.changes, self.transactions.hanging)
        if self.error:
            log.warning("the cluster answers again")
            self.error = ""
        self.version += 1
        return took

    async def _keep_asking(self, admin: Told) -> None:
        while True:
            try:
                await self.ask_changes(admin)
            except (ClientError, TransportError) as failure:
                log.debug("cannot read what has changed: %s", failure)
            await asyncio.sleep(CHANGES_EVERY)

    async def ask_changes(self, admin: Told) -> None:
        """All that nodes have told since the last time."""
        more = True
        while more:
            told = await admin.describe_changes(self.changes.known, timeout_ms=ANSWER_MS)
            before = self.changes.version
            self.changes.add(told)
            if self.changes.version != before:
                self.version += 1
            more = any(node.changes for node in told)

    async def _keep_listing_groups(self, admin: Admin) -> None:
        while True:
            started = time.monotonic()
            try:
                await self.look_at_groups(admin)
                self.groups_error = ""
            except (ClientError, TransportError) as failure:
                self.groups_error = str(failure)
            took = time.monotonic() - started
            await asyncio.sleep(min(MOST_PAUSE, max(GROUPS_EVERY, took / SHARE)))

    async def look_at_groups(self, admin: Admin) -> None:
        """All groups by name, and the first `MOST_GROUPS` with members, offsets and lag."""
        self.group_names = await admin.list_groups()
        found: dict[str, GroupDescription] = {}
        for listed in self.group_names[:MOST_GROUPS]:
            try:
                (described,) = await admin.describe_groups([listed.group])
            except GroupIdNotFoundError:
                continue  # deleted since it was listed
            found[listed.group] = described
        self.groups = found
        self.history.add_groups(time.time(), found.values())
        self.version += 1

    async def _keep_listing_transactions(self, admin: Admin) -> None:
        while True:
            started = time.monotonic()
            await self.transactions.look(admin)
            self.version += 1
            took = time.monotonic() - started
            await asyncio.sleep(min(MOST_PAUSE, max(TRANSACTIONS_EVERY, took / SHARE)))

    async def _keep_searching(self, admin: Admin) -> None:
        while True:
            await self.search_hanging(admin)
            await asyncio.sleep(min(SEARCH_EVERY, self.hangs_after_ms / 1000 or 1.0))

    async def search_hanging(self, admin: Admin) -> None:
        """Look for transactions that hang now."""
        await self.transactions.search(admin, self.hangs_after_ms)
        self.version += 1
