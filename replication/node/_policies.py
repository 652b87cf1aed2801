"""Election policies: the built-in ones, and those of plugins (entry point group `insync.election_policies`)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.metadata import entry_points

from ..core.elections import POLICIES, Policy

log = logging.getLogger("insync.node")

GROUP = "insync.election_policies"


def election_policies() -> Mapping[str, Policy]:
    """All that are installed, by name. One that cannot be loaded is left out, and the log says so."""
    found: dict[str, Policy] = {}
    for entry in entry_points(group=GROUP):
        try:
            found[entry.name] = entry.load()
        except Exception as error:  # noqa: BLE001 - somebody else's code: the node does without it
            log.error("the election policy %s (%s) cannot be loaded: %r", entry.name, entry.value, error)
    return {**found, **POLICIES}
