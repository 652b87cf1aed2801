"""All kinds of faults."""

from __future__ import annotations

from . import ambushes, clocks, forgetting, identities, injector, restores, survivors, trust

KINDS: injector.Kinds = {
    **injector.KINDS,
    **trust.KINDS,
    **restores.KINDS,
    **forgetting.KINDS,
    **identities.KINDS,
    **survivors.KINDS,
    **clocks.KINDS,
    **ambushes.KINDS,
}
