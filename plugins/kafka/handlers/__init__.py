"""The handlers of each API: Kafka's messages to the node's and back, one module for each family."""

from __future__ import annotations

from . import (
    acls,
    cluster,
    configs,
    group_admin,
    group_offsets,
    groups,
    log_dirs,
    login,
    offsets,
    quotas,
    topics,
    transaction_admin,
    transactions,
    users,
)
from .table import Exchange, Handler, Offer
from .versions import Offers

_MODULES = (
    acls,
    cluster,
    configs,
    group_admin,
    group_offsets,
    groups,
    log_dirs,
    login,
    offsets,
    quotas,
    topics,
    transaction_admin,
    transactions,
    users,
)
OFFERS: dict[int, Offer] = {offer.api: offer for module in _MODULES for offer in module.OFFERS}
"""All APIs but ApiVersions, Produce and Fetch, which have modules of their own."""
OFFERED = Offers(OFFERS)

__all__ = ["OFFERED", "OFFERS", "Exchange", "Handler", "Offer"]
