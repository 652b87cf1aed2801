"""Where the planted errors of groups are kept."""

from __future__ import annotations

from ..registry import Registry

REGISTRY = Registry()
mutant = REGISTRY.mutant
