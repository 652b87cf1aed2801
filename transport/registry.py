"""Transports by URL scheme: registered, built in, or installed as entry points of the group `insync.transports`."""

from __future__ import annotations

import threading
from importlib.metadata import EntryPoint, entry_points

from ._memory import MemoryTransport
from .abc import API_VERSION, LinkTransport
from .chaos import PREFIX as CHAOS
from .chaos import ChaosTransport
from .errors import AmbiguousTransportError, TransportError, UnknownSchemeError, VersionMismatchError
from .urls import URL, Endpoint

GROUP = "insync.transports"

_BUILT_IN: dict[str, type[LinkTransport]] = {"mem": MemoryTransport}

_lock = threading.RLock()
_registered: dict[str, type[LinkTransport]] = {}
_instances: dict[str, LinkTransport] = {}
_installed: dict[str, list[EntryPoint]] | None = None


def register(scheme: str, transport: type[LinkTransport], *, override: bool = False) -> None:
    """Use a class for a scheme in this process, before whatever is installed.

    Raises:
      AmbiguousTransportError: The scheme is built in or registered, and `override` is not given.
    """
    with _lock:
        taken = _registered.get(scheme) or _BUILT_IN.get(scheme)
        if taken is not None and taken is not transport and not override:
            raise AmbiguousTransportError(
                f"the scheme {scheme!r} is {taken.__qualname__}'s: pass override=True to replace it"
            )
        _check_version(scheme, transport, "this process")
        _registered[scheme] = transport
        _instances.pop(scheme, None)


def get(scheme: str) -> LinkTransport:
    """The transport of a scheme; installed ones are loaded when first asked for. `chaos+` before it adds faults.

    Raises:
      UnknownSchemeError: None is installed; the message names those that are.
      AmbiguousTransportError: Two distributions offer one.
      VersionMismatchError: It was written for another version of this interface.
      TransportError: It cannot be loaded.
    """
    if scheme.startswith(CHAOS):
        return ChaosTransport(get(scheme.removeprefix(CHAOS)))
    with _lock:
        found = _instances.get(scheme)
        if found is None:
            found = _instances[scheme] = (_registered.get(scheme) or _BUILT_IN.get(scheme) or _load(scheme))()
        return found


def resolve(url: str) -> tuple[LinkTransport, Endpoint]:
    """A URL's transport, and the URL as that transport has checked it. ValueError if it is malformed; see `get`."""
    parsed = URL.parse(url)
    transport = get(parsed.scheme)
    return transport, transport.parse(parsed)


def schemes() -> list[str]:
    """All schemes that can be asked for, loaded or not."""
    with _lock:
        return sorted({*_registered, *_BUILT_IN, *_entry_points()})


def _load(scheme: str) -> type[LinkTransport]:
    offers = _entry_points().get(scheme, [])
    if not offers:
        raise UnknownSchemeError(
            f"no transport for {scheme}:// is installed; installed: {', '.join(schemes())}"
        )
    if len({offer.value for offer in offers}) > 1:
        names = ", ".join(f"{_distribution(offer)} ({offer.value})" for offer in offers)
        raise AmbiguousTransportError(
            f"several distributions offer {scheme}://: {names}; uninstall all but one"
        )
    try:
        transport = offers[0].load()
    except Exception as error:
        text = f"the transport for {scheme}:// of {_distribution(offers[0])} cannot be loaded: {error!r}"
        raise TransportError(text) from error
    _check_version(scheme, transport, _distribution(offers[0]))
    return transport


def _entry_points() -> dict[str, list[EntryPoint]]:
    global _installed
    if _installed is None:
        _installed = {}
        for offer in entry_points(group=GROUP):
            _installed.setdefault(offer.name, []).append(offer)
    return _installed


def _distribution(offer: EntryPoint) -> str:
    return offer.dist.name if offer.dist is not None else "an unnamed distribution"


def _check_version(scheme: str, transport: type[LinkTransport], origin: str) -> None:
    major, minor = transport.api_version
    if major != API_VERSION[0] or minor > API_VERSION[1]:
        raise VersionMismatchError(
            f"the transport for {scheme}:// of {origin} is written for version {major}.{minor} of the interface, "
            f"this is {API_VERSION[0]}.{API_VERSION[1]}"
        )
