"""The messages of Kafka's protocol as tables of text; `protocol.tables` says how to read them."""

from __future__ import annotations

from . import cluster, group_admin, groups, records, security, settings, topics, transactions

TEXTS = tuple(
    module.TABLES
    for module in (records, cluster, groups, group_admin, transactions, topics, settings, security)
)
