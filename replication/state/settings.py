"""The settings of a copy of replicated state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs

from ..client.errors import InvalidSettingError
from ._applying import WINDOW


@attrs.frozen(kw_only=True)
class StateSettings:
    """The settings of a copy. Durations are in milliseconds, sizes in bytes. `digest_every` must be the same on all
    copies of a state.

    create: Whether opening creates missing topics.
    replication_factor: Replicas of the topics that opening creates; None: 3, or the number of nodes if lower.
    max_under_way: Commands of one handle that may wait for answers; further commands wait before they are sent.
    batch_bytes: Maximum size of the commands that are sent together in one record.
    records_in_flight: Records that may be sent before the first is acknowledged.
    deduplicate_for_ms: How long an idempotency key (`submit(..., id=...)`) returns the first answer.
    snapshot_every: Commands after which one of the copies writes a snapshot; then the log below the previous
      snapshot is deleted. 0: no snapshots, and the whole log is kept.
    digest_every: Commands after which all copies compare their digests; 0: never.
    raise_version: Whether this copy raises the topic's version when all copies have it; False: it is left to
      `raise_version()`.
    keeper_lease_ms: How long a silent copy can delay the next snapshot, or the raise of the version.
    cache_dir: A folder for the last snapshot, from which the next start of this process reads it; None: no cache.
    open_timeout_ms: Time limit for opening.
    """

    create: bool = True
    replication_factor: int | None = None
    max_under_way: int = 4096
    batch_bytes: int = 256 << 10
    records_in_flight: int = 4
    deduplicate_for_ms: int = 600_000
    snapshot_every: int = 100_000
    digest_every: int = 10_000
    raise_version: bool = True
    keeper_lease_ms: int = 30_000
    cache_dir: Path | None = None
    open_timeout_ms: int = 60_000

    def __attrs_post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InvalidSettingError(
                    f"{name} is {value!r}; it must be a whole number of at least {least}"
                )
        if self.max_under_way > WINDOW // 2:
            raise InvalidSettingError(
                f"max_under_way is {self.max_under_way}; it must be {WINDOW // 2} at most"
            )
        if self.cache_dir is not None and not isinstance(self.cache_dir, Path):
            raise InvalidSettingError(f"cache_dir is {self.cache_dir!r}; give a pathlib.Path or None")


_LEAST = {
    "max_under_way": 1,
    "batch_bytes": 1,
    "records_in_flight": 1,
    "deduplicate_for_ms": 0,
    "snapshot_every": 0,
    "digest_every": 0,
    "keeper_lease_ms": 1000,
    "open_timeout_ms": 1,
}


def split(options: dict[str, Any], settings: StateSettings | None) -> tuple[StateSettings, dict[str, Any]]:
    """Split keywords into the settings of a copy and those of its clients."""
    names = {field.name for field in attrs.fields(StateSettings)}
    own = {name: value for name, value in options.items() if name in names}
    rest = {name: value for name, value in options.items() if name not in names}
    chosen = settings if settings is not None else StateSettings()
    return attrs.evolve(chosen, **own), rest
