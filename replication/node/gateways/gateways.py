"""Gateways: listeners for clients of foreign protocols, inside a node.

A plugin names a class derived from `Gateway` in the entry point group `insync.gateways` under each of its URL
schemes. A node whose `listeners` have a URL of such a scheme makes the class, without arguments, and runs `serve`.
Any exception of a gateway becomes an error of the node, or a line in its log.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import ClassVar

import trio

from ....transport import URL, Endpoint, InsecureAddressError, Security, Serving, TransportError
from ....transport import schemes as transport_schemes
from ....transport.repeats import limited
from ....transport.versions import misfit
from ..._places import place_of
from ..errors import NodeStartError
from ..service import NodeService

log = limited(logging.getLogger("insync.node"))

API_VERSION = (1, 2)
"""Of this interface, as (major, minor): another major number is refused, and so is a greater minor one."""
GROUP = "insync.gateways"


class Gateway(ABC):
    """A foreign protocol. One object serves all addresses of its scheme in a process."""

    api_version: ClassVar[tuple[int, int]] = API_VERSION
    """Of the interface that it was written for; a plugin writes the numbers out."""
    schemes: ClassVar[tuple[str, ...]]
    """Of its URLs, the same as the names of its entry points."""

    @abstractmethod
    def parse(self, url: URL) -> Endpoint:
        """Check a URL, without I/O. ValueError names what is malformed. `str()` of the result is canonical."""

    @abstractmethod
    async def serve(
        self,
        endpoint: Endpoint,
        service: NodeService,
        security: Security,
        *,
        task_status: trio.TaskStatus[Serving],
    ) -> None:
        """Listen until cancelled; the connections end with it.

        Call `task_status.started` with the URLs at which clients reach the address, real ports and no wildcards, as
        soon as it is bound: they become part of the node's registration. Await `service.ready()` before accepting.

        Raises:
          InsecureAddressError: Other machines reach this address, and nobody would have to prove anything, though
            `security.allow_insecure` is not given.
          OSError: The system refuses the address.
          ValueError: An option is invalid, such as a file that is not a certificate.
        """


_made: dict[str, Gateway] = {}


def schemes() -> list[str]:
    """All schemes of installed gateways."""
    return sorted({point.name for point in entry_points(group=GROUP)})


def find(url: str) -> tuple[Gateway, Endpoint] | None:
    """The gateway of a URL, and the URL as it has checked it; None if transports have the scheme, or nobody has.

    Raises:
      NodeStartError: The gateway cannot be loaded, or fails over the URL.
      ValueError: The URL is malformed.
    """
    parsed = URL.parse(url)
    if parsed.scheme in transport_schemes():
        return None
    gateway = get(parsed.scheme)
    if gateway is None:
        if near := get_close_matches(parsed.scheme, schemes(), 1):
            raise ValueError(
                f"no transport or gateway has the scheme {parsed.scheme}; did you mean {near[0]}://?"
            )
        return None
    try:
        return gateway, gateway.parse(parsed)
    except ValueError:
        raise
    except Exception as error:
        raise NodeStartError(f"{url}: its gateway cannot parse this URL: {_told(error)}") from error


async def serve(
    gateway: Gateway,
    endpoint: Endpoint,
    service: NodeService,
    security: Security,
    *,
    task_status: trio.TaskStatus[Serving],
) -> None:
    """Run a gateway, guarded. If it fails later, the node logs that and continues without it.

    Raises:
      NodeStartError: It cannot listen.
    """
    status = _Status(task_status)
    try:
        await gateway.serve(endpoint, service, security, task_status=status)
        problem = "it ended unexpectedly"
    except BaseException as error:
        foreign = _foreign(error)
        if foreign is None:
            raise
        if not status.called:
            expected = isinstance(foreign, OSError | ValueError | TransportError | InsecureAddressError)
            raise NodeStartError(
                f"cannot listen on {endpoint}: {foreign if expected else _told(foreign)}"
            ) from foreign
        problem = _told(foreign)
    if not status.called:
        raise NodeStartError(f"cannot listen on {endpoint}: its gateway {problem}")
    log.error(
        "the gateway at %s has stopped; its clients are not served until the node is restarted: %s",
        endpoint,
        problem,
    )


class _Status(trio.TaskStatus[Serving]):
    """Remembers whether the gateway has begun to listen."""

    def __init__(self, inner: trio.TaskStatus[Serving]) -> None:
        self._inner = inner
        self.called = False

    def started(self, value: Serving | None = None) -> None:
        """See `trio.TaskStatus`."""
        if not isinstance(value, Serving):
            raise TypeError(f"started() takes an insync.transport.Serving, not {value!r}")
        self.called = True
        self._inner.started(value)


def get(scheme: str) -> Gateway | None:
    """The gateway of a scheme, made when it is first asked for; None if none is installed.

    Raises:
      NodeStartError: It cannot be loaded, or several distributions offer one.
    """
    if scheme in _made:
        return _made[scheme]
    points = [point for point in entry_points(group=GROUP) if point.name == scheme]
    if not points:
        return None
    if len({point.value for point in points}) > 1:
        offers = ", ".join(map(_origin, points))
        raise NodeStartError(f"several distributions offer {scheme}://: {offers}; uninstall all but one")
    made = _made[scheme] = _load(points[0])
    return made


def _load(point: EntryPoint) -> Gateway:
    who = f"the gateway for {point.name}:// of {_origin(point)}"
    try:
        found = point.load()
    except Exception as error:
        raise NodeStartError(f"{who} cannot be loaded: {_told(error)}") from error
    if not (isinstance(found, type) and issubclass(found, Gateway)):
        raise NodeStartError(f"{who} is {found!r}, which is not a subclass of Gateway")
    given = getattr(found, "schemes", ())
    if isinstance(given, str) or point.name not in given:
        raise NodeStartError(f"{who} has schemes={given!r}: name {point.name!r} there, in a tuple")
    if wrong := misfit(found.api_version, API_VERSION):
        raise NodeStartError(f"{who} {wrong}")
    try:
        return found()
    except Exception as error:
        raise NodeStartError(f"{who} cannot be made: {_told(error)}") from error


def _origin(point: EntryPoint) -> str:
    return f"{point.dist.name if point.dist is not None else 'a distribution'} ({point.value})"


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}{place_of(error)}"


def _foreign(error: BaseException) -> BaseException | None:
    """The error itself, of a group the first one; None if there is nothing but what ends or cancels us."""
    if isinstance(error, BaseExceptionGroup):
        if error.subgroup((KeyboardInterrupt, SystemExit)) is not None:
            return None
        found = [each for each in map(_foreign, error.exceptions) if each is not None]
        return found[0] if found else None
    return error if isinstance(error, Exception) else None


__all__ = ["API_VERSION", "GROUP", "Gateway", "find", "get", "schemes", "serve"]
