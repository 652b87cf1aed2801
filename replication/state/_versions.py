"""The name and version of a state machine's code, and its migrations: looked at when the class is defined."""

from __future__ import annotations

import inspect

MOST_VERSION = 1 << 16


def check(cls: type) -> None:
    """Raises:
    TypeError: The class's name or version is none, or a migration is missing or left over.
    """
    name, version = cls.state_name, cls.state_version  # type: ignore[attr-defined]
    if not isinstance(name, str) or len(name) > 100:
        raise TypeError(
            f"{cls.__name__}.state_name is {name!r:.120}; it must be a string of at most 100 characters"
        )
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= MOST_VERSION:
        raise TypeError(
            f"{cls.__name__}.state_version is {version!r:.120}; it must be a whole number from 1 to {MOST_VERSION}"
        )
    wanted = {migration(each) for each in range(2, version + 1)}
    found = {each for each in dir(cls) if each.startswith("migrate_") and "_to_" in each}
    for each in sorted(wanted - found):
        raise TypeError(
            f"{cls.__name__}.state_version is {version}, but it has no method {each}: add it, and keep "
            "the earlier ones"
        )
    for each in sorted(found - wanted):
        raise TypeError(f"{cls.__name__}.state_version is {version}, so {each} would never run: raise it")
    for each in sorted(found):
        if inspect.iscoroutinefunction(getattr(cls, each)):
            raise TypeError(
                f"{cls.__name__}.{each} is async: it runs in the log's order and waits for nothing"
            )


def migration(version: int) -> str:
    """The method that brings a state to `version`."""
    return f"migrate_{version - 1}_to_{version}"
