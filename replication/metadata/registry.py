"""Finds the store for a URL: the built-in ones, and what plugins register as entry points."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from urllib.parse import SplitResult, unquote, urlsplit

from ...transport import Identity, Security, TransportError
from ...transport.registry import resolve
from ...transport.versions import misfit
from .._places import place_of
from .abc import API_VERSION, MetadataStore
from .errors import InvalidStoreUrlError, MetadataError, StoreLoadError, UnknownStoreSchemeError
from .guarded import GuardedStore
from .memory import MemoryHub, MemoryStore
from .remote_store.client import RemoteStore
from .sqlite_store.store import SqliteStore

ENTRY_POINT_GROUP = "insync.metadata_stores"
"""Entry point group of plugins: the name is the scheme, the object takes the URL and returns a store."""

StoreFactory = Callable[[str], MetadataStore]

WAIT_SECONDS = 15.0

REMOTE = "remote+"
"""The prefix of a transport's scheme for a store that is served there."""


def open_store(
    url: str,
    *,
    security: Security | None = None,
    identity: Identity | None = None,
    wait_seconds: float = WAIT_SECONDS,
) -> GuardedStore:
    """Make the handle for a URL; enter it with `async with`. Nothing is opened yet.

    `memory://name` (one store for each name in this process; without a name, a store of its own),
    `sqlite:///absolute/path`, `remote+tcp://host:port` (or any other transport) for a store that `serve_store` or
    `insync store` serves there, or the scheme of an installed plugin. `security`: for remote stores, what to prove
    to the server and to ask of it; without it what the environment names. `identity`: for remote stores, as whom
    to come: their servers let in nodes, and whom their rules name. `wait_seconds`: how long entering it waits for a
    server that does not answer (yet).
    The handle is a `GuardedStore`: errors that the interface does not know become `StoreUnavailableError`.
    Raises `UnknownStoreSchemeError`, `InvalidStoreUrlError`, or `StoreLoadError` for a plugin that fails here.
    """
    scheme, separator, _ = url.partition("://")
    if not scheme or not separator:
        raise InvalidStoreUrlError(
            f"{url!r} is not a store URL; write for example sqlite:///var/lib/app/meta.db"
        )
    make = _maker(url, scheme, security, identity)
    return GuardedStore(make, f"the metadata store {_hidden(url)}", wait_seconds=wait_seconds)


def _maker(
    url: str, scheme: str, security: Security | None, identity: Identity | None
) -> Callable[[], MetadataStore]:
    if scheme.startswith(REMOTE):
        return partial(_open_remote, url.removeprefix(REMOTE), security, identity)
    if scheme in _BUILT_IN:
        return partial(_BUILT_IN[scheme], url)
    return partial(_make, _offer(scheme), url)


def load_factory(scheme: str) -> StoreFactory:
    """The factory that a plugin registers under a scheme.

    Raises `UnknownStoreSchemeError`, or `StoreLoadError` if several distributions offer it or it cannot be loaded.
    """
    return _load(_offer(scheme))


def _load(point: EntryPoint) -> StoreFactory:
    try:
        factory: StoreFactory = point.load()
    except Exception as error:
        raise StoreLoadError(f"{_origin(point)} cannot be loaded: {_told(error)}") from error
    if not callable(factory):
        raise StoreLoadError(f"{_origin(point)} is {factory!r}, which cannot be called with a URL")
    return factory


def _offer(scheme: str) -> EntryPoint:
    points = entry_points(group=ENTRY_POINT_GROUP)
    offers = [point for point in points if point.name == scheme]
    if not offers:
        raise UnknownStoreSchemeError(scheme, {*_BUILT_IN, *(point.name for point in points)})
    if len({offer.value for offer in offers}) > 1:
        raise StoreLoadError(
            f"several distributions offer {scheme}://: {', '.join(map(_origin, offers))}; uninstall all but one"
        )
    return offers[0]


def _origin(point: EntryPoint) -> str:
    return f"{point.dist.name if point.dist is not None else 'a distribution'} ({point.value})"


def _make(point: EntryPoint, url: str) -> MetadataStore:
    """The store that a plugin makes of its URL."""
    factory = _load(point)
    try:
        store = factory(url)
    except MetadataError:
        raise
    except Exception as error:
        raise StoreLoadError(f"{_origin(point)} failed on {_hidden(url)!r}: {_told(error)}") from error
    if not isinstance(store, MetadataStore):
        raise StoreLoadError(
            f"{_origin(point)} gave {type(store).__name__} for {_hidden(url)!r}, which is not a subclass of "
            "insync.replication.metadata.MetadataStore"
        )
    if wrong := misfit(store.api_version, API_VERSION):
        raise StoreLoadError(f"{_origin(point)} {wrong}")
    return store


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}{place_of(error)}"


def _hidden(url: str) -> str:
    """The URL as it may stand in a message: without a password."""
    return re.sub(r"//[^/@]*@", "//...@", url)


def installed_schemes() -> tuple[str, ...]:
    """The schemes that `open_store` knows here, sorted."""
    return tuple(
        sorted(
            {
                *_BUILT_IN,
                REMOTE + "TRANSPORT",
                *(point.name for point in entry_points(group=ENTRY_POINT_GROUP)),
            }
        )
    )


def _open_remote(url: str, security: Security | None, identity: Identity | None) -> MetadataStore:
    try:
        resolve(url)
    except (ValueError, TransportError) as error:
        raise InvalidStoreUrlError(f"{REMOTE + url!r}: {error}") from error
    return RemoteStore(url, security=security or Security.load(), identity=identity)


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:
        raise InvalidStoreUrlError(f"{_hidden(url)!r} is not a URL: {error}") from error


def _open_memory(url: str) -> MetadataStore:
    parts = _split(url)
    if parts.path or parts.query or parts.fragment:
        raise InvalidStoreUrlError(f"{url!r}: a memory store's URL is memory://name")
    return MemoryStore(MemoryHub.named(parts.netloc) if parts.netloc else None)


def _open_sqlite(url: str) -> MetadataStore:
    parts = _split(url)
    path = unquote(parts.path)
    if parts.netloc or parts.query or parts.fragment or len(path) < 2 or path.endswith("/"):
        raise InvalidStoreUrlError(
            f"{url!r}: a SQLite store's URL is sqlite:///absolute/path (three slashes)"
        )
    # Four slashes, as some write an absolute path, mean the same file.
    return SqliteStore("/" + path.lstrip("/"), writes_apart=True)


_BUILT_IN: dict[str, StoreFactory] = {"memory": _open_memory, "sqlite": _open_sqlite}
