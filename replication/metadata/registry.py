"""Finds the store for a URL: the built-in ones, and what plugins register as entry points."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from urllib.parse import unquote, urlsplit

from .abc import MetadataStore
from .errors import InvalidStoreUrlError, UnknownStoreSchemeError
from .memory import MemoryHub, MemoryStore
from .sqlite import SqliteStore

ENTRY_POINT_GROUP = "insync.metadata_stores"
"""Entry point group of plugins: the name is the scheme, the object takes the URL and returns a store."""

StoreFactory = Callable[[str], MetadataStore]


def open_store(url: str) -> MetadataStore:
    """Make the handle for a URL; enter it with `async with`. Nothing is opened yet.

    `memory://name` (one store for each name in this process; without a name, a store of its own),
    `sqlite:///absolute/path`, or the scheme of an installed plugin.
    Raises `UnknownStoreSchemeError` or `InvalidStoreUrlError`.
    """
    scheme, separator, _ = url.partition("://")
    if not scheme or not separator:
        raise InvalidStoreUrlError(
            f"{url!r} is no store URL; write for example sqlite:///var/lib/app/meta.db"
        )
    if scheme in _BUILT_IN:
        return _BUILT_IN[scheme](url)
    plugins = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if scheme not in plugins:
        raise UnknownStoreSchemeError(scheme, {*_BUILT_IN, *plugins})
    return _load(plugins[scheme])(url)


def installed_schemes() -> tuple[str, ...]:
    """The schemes that `open_store` knows here, sorted."""
    return tuple(sorted({*_BUILT_IN, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))}))


def _load(point: EntryPoint) -> StoreFactory:
    factory: StoreFactory = point.load()
    return factory


def _open_memory(url: str) -> MetadataStore:
    parts = urlsplit(url)
    if parts.path or parts.query or parts.fragment:
        raise InvalidStoreUrlError(f"{url!r}: a memory store's URL is memory://name")
    return MemoryStore(MemoryHub.named(parts.netloc) if parts.netloc else None)


def _open_sqlite(url: str) -> MetadataStore:
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc or parts.query or parts.fragment or len(path) < 2 or path.endswith("/"):
        raise InvalidStoreUrlError(
            f"{url!r}: a SQLite store's URL is sqlite:///absolute/path (three slashes)"
        )
    # Four slashes, as some write an absolute path, mean the same file.
    return SqliteStore("/" + path.lstrip("/"))


_BUILT_IN: dict[str, StoreFactory] = {"memory": _open_memory, "sqlite": _open_sqlite}
