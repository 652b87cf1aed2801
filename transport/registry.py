"""Transports by URL scheme: registered, built in, or installed as entry points of the group `insync.transports`."""

from __future__ import annotations

import sys
import threading
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points

from ._border import place_of, told
from ._memory import MemoryTransport
from .abc import API_VERSION, LinkTransport
from .chaos import PREFIX as CHAOS
from .chaos import ChaosTransport
from .errors import AmbiguousTransportError, TransportError, UnknownSchemeError, VersionMismatchError
from .urls import URL, Endpoint
from .versions import misfit

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
        _check_class(scheme, transport, "this process")
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
            cls, origin = _registered.get(scheme) or _BUILT_IN.get(scheme), "this process"
            if cls is None:
                cls, origin = _load(scheme)
            found = _instances[scheme] = _made(cls, scheme, origin)
        return found


def resolve(url: str) -> tuple[LinkTransport, Endpoint]:
    """A URL's transport, and the URL as that transport has checked it. ValueError if it is malformed; see `get`."""
    parsed = URL.parse(url)
    transport = get(parsed.scheme)
    try:
        return transport, transport.parse(parsed)
    except (ValueError, TransportError):
        raise
    except Exception as error:
        what = told(error, parsed.scheme, "parse", url)
        raise TransportError(f"{url}: its transport cannot parse this URL: {what}") from error


def schemes() -> list[str]:
    """All schemes that can be asked for, loaded or not."""
    with _lock:
        return sorted({*_registered, *_BUILT_IN, *_entry_points()})


def _made(cls: type[LinkTransport], scheme: str, origin: str) -> LinkTransport:
    """The one object of a class; it is made without arguments."""
    try:
        return cls()
    except Exception as error:
        # Of a method that was not written Python says so itself, and names it.
        what = f"{type(error).__name__}: {error} (at {place_of(error)})"
        raise TransportError(f"{_offer(scheme, origin)} cannot be used: {what}") from error


def _load(scheme: str) -> tuple[type[LinkTransport], str]:
    offers = _entry_points().get(scheme, [])
    if not offers:
        near = get_close_matches(scheme, schemes(), 1)
        meant = f"; did you mean {near[0]}://?" if near else "."
        raise UnknownSchemeError(
            f"no transport for {scheme}:// is installed; installed: {', '.join(schemes())}{meant} A plugin names "
            f"it as an entry point of the group {GROUP}, in a distribution installed for {sys.executable}"
        )
    if len({offer.value for offer in offers}) > 1:
        names = ", ".join(f"{_distribution(offer)} ({offer.value})" for offer in offers)
        raise AmbiguousTransportError(
            f"several distributions offer {scheme}://: {names}; uninstall all but one"
        )
    origin = f"{_distribution(offers[0])} ({offers[0].value})"
    try:
        transport = offers[0].load()
    except Exception as error:
        what = f"{type(error).__name__}: {error} (at {place_of(error)})"
        raise TransportError(f"{_offer(scheme, origin)} cannot be loaded: {what}") from error
    _check_class(scheme, transport, origin)
    return transport, origin


def _entry_points() -> dict[str, list[EntryPoint]]:
    global _installed
    if _installed is None:
        _installed = {}
        for offer in entry_points(group=GROUP):
            _installed.setdefault(offer.name, []).append(offer)
    return _installed


def _distribution(offer: EntryPoint) -> str:
    return offer.dist.name if offer.dist is not None else "an unnamed distribution"


def _offer(scheme: str, origin: str) -> str:
    return f"the transport for {scheme}:// of {origin}"


def _check_class(scheme: str, transport: object, origin: str) -> None:
    """Whether it is a transport for this scheme, of a version that fits."""
    who = _offer(scheme, origin)
    if not (isinstance(transport, type) and issubclass(transport, LinkTransport)):
        raise TransportError(
            f"{who} is {transport!r}, which is not a subclass of LinkTransport or StreamTransport"
        )
    for name in ("schemes", "caps"):
        if not hasattr(transport, name):
            raise TransportError(f"{who} has no class attribute {name!r}: see docs/writing-a-transport.md")
    if isinstance(transport.schemes, str) or scheme not in transport.schemes:
        raise TransportError(f"{who} has schemes={transport.schemes!r}: name {scheme!r} there, in a tuple")
    if wrong := misfit(transport.api_version, API_VERSION):
        raise VersionMismatchError(f"{who} {wrong}")
