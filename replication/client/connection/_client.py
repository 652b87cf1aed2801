"""The common part of producer, consumer and admin: a block in which a cluster is watched."""

from __future__ import annotations

import itertools
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import trio

from ....transport import DeadlineExceeded
from .._settings import ClientSettings, bootstrap_urls, load_security
from ..errors import BootstrapError, ClosedError, NoTrioError, RequestTimeoutError
from ._cluster import Cluster

log = logging.getLogger("insync.client")


class Client(ABC):
    """An async context manager; entering it reaches one node or raises `BootstrapError`."""

    _cluster: Cluster
    _nursery: trio.Nursery
    _says_goodbye = False
    """Whether its tasks go on when its block is cancelled, until the block is left."""

    def __init__(self, bootstrap_servers: str | Sequence[str], settings: ClientSettings) -> None:
        self._bootstrap = bootstrap_urls(bootstrap_servers)
        self._client_settings = settings
        self._security = load_security(settings)
        self._closed = True
        self._manager: Any = None

    async def __aenter__(self) -> Self:
        try:
            trio.lowlevel.current_trio_token()
        except RuntimeError:
            name = type(self).__name__
            raise NoTrioError(
                f"this {name} needs trio, which does not run here: use `insync.replication.asyncio.{name}` on "
                f"asyncio, and `Blocking{name}` with threads"
            ) from None
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        if self._says_goodbye:
            # Whoever is cancelled already would wait forever: `start` leaves the task where it is then.
            with trio.CancelScope(shield=True):
                self._nursery = await self._nursery.start(_shielded)
        self._cluster = Cluster(self._bootstrap, self._client_settings, self._nursery, self._security)
        self._nursery.start_soon(self._cluster.run)
        try:
            await self._reach_a_node()
            self._start()
            await self._begin()
        except BaseException:
            await self._stop(None)
            raise
        self._closed = False
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None or isinstance(error, Exception):
                await self._finish()
        finally:
            self._closed = True
            await self._stop(error)

    async def _stop(self, error: BaseException | None) -> None:
        """End the tasks. Only what may be our own cancellation is shown to the nursery: it would wrap the rest."""
        self._nursery.cancel_scope.cancel()
        self._cluster.links.abort_all()
        is_ours = isinstance(error, trio.Cancelled | BaseExceptionGroup) and not isinstance(error, Exception)
        ours = error if is_ours else None
        await self._manager.__aexit__(
            type(ours) if ours else None, ours, ours.__traceback__ if ours else None
        )

    async def _reach_a_node(self) -> None:
        """Dial the bootstrap servers, repeatedly while those that refuse may soon accept."""
        began = trio.current_time()
        for attempt in itertools.count(1):
            try:
                return await self._cluster.refresh()
            except BootstrapError as error:
                # A busy server is not helped by many who come back at once.
                is_slow = error.patience > self._client_settings.connect_timeout_ms / 1000
                pause = self._cluster.backoff(attempt) if is_slow else self._cluster.quick_backoff(attempt)
                if trio.current_time() + pause >= began + error.patience:
                    raise
                if is_slow and attempt == 1:
                    log.warning("%s; this client tries again for %g s", error, error.patience)
            except RequestTimeoutError as error:
                pause = self._cluster.backoff(attempt)
                patience = self._client_settings.request_timeout_ms / 1000
                is_busy = isinstance(error.__cause__, DeadlineExceeded)
                if not is_busy or trio.current_time() + pause >= began + patience:
                    raise
            await trio.sleep(pause)
        return None

    @abstractmethod
    def _start(self) -> None:
        """Start the tasks of this client."""

    async def _begin(self) -> None:
        """Do the remaining work before the block is entered."""
        await trio.lowlevel.checkpoint()

    async def _finish(self) -> None:
        """Do the remaining work when the block is left."""
        await trio.lowlevel.checkpoint()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the {type(self).__name__} is not open; use it inside its `async with` block")


async def _shielded(task_status: trio.TaskStatus[trio.Nursery]) -> None:
    with trio.CancelScope(shield=True):
        async with trio.open_nursery() as nursery:
            task_status.started(nursery)
            await trio.sleep_forever()
