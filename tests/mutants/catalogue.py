"""The register of planted errors: each a few lines over a correct core, by the names of docs/protocol.md."""

from __future__ import annotations

from importlib import import_module

from .registry import Mutant, Patch, Plant, Registry

__all__ = ["MUTANTS", "Patch", "Plant", "load", "mutant"]

_FILES = (
    "followers",
    "leaders",
    "isr",
    "producers",
    "controllers",
    "hosts",
    "deletions",
    "departures",
    "topics",
    "directories",
    "reassignments",
    "sessions",
    "members",
    "following",
    "requests",
    "peers",
    "damage",
    "current_reads",
    "restores",
    "suspicion",
    "versions",
    "shards",
    "transacting",
    "transactions",
    "groups_shards",
    "groups_consumer",
    "groups_classic",
    "groups_members",
    "groups_offsets",
    "groups_copies",
)


_REGISTRY = Registry()
MUTANTS = _REGISTRY.mutants
mutant = _REGISTRY.mutant


def load() -> dict[str, Mutant]:
    """All mutants by name."""
    for file in _FILES:
        import_module(f"{__package__}.planted.{file}")
    return MUTANTS
