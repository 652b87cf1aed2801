"""`python -m tests.interop.events.librdkafka SERVERS LOGINS [JOB,...]`: what librdkafka tells a program."""

from __future__ import annotations

from .rdkafka.administration import creations, groups_and_users, records_and_leaders, settings
from .rdkafka.clients import ONLY
from .rdkafka.groups import commits, fenced_instances, share
from .rdkafka.producing import another_leader, deliveries, made_again, made_by_use, refused_records
from .rdkafka.reading import ends, resets, subscriptions
from .rdkafka.rights import logins, rights
from .rdkafka.transactions import offsets_of_transactions, transactions
from .record import run

run(
    {
        "deliveries": deliveries,
        "refused records": refused_records,
        "made by use": made_by_use,
        "made again": made_again,
        "another leader": another_leader,
        "ends": ends,
        "resets": resets,
        "subscriptions": subscriptions,
        "group by ranges": lambda tell: share(tell, "ranges", True, partition_assignment_strategy="range"),
        "group, cooperative": lambda tell: share(
            tell, "cooperative", False, partition_assignment_strategy="cooperative-sticky"
        ),
        "group of KIP-848": lambda tell: share(tell, "kip-848", False, group_protocol="consumer"),
        "commits": commits,
        "fenced instances": fenced_instances,
        "transactions": transactions,
        "offsets of transactions": offsets_of_transactions,
        "creations": creations,
        "settings": settings,
        "records and leaders": records_and_leaders,
        "groups and users": groups_and_users,
        "logins": logins,
        "rights": rights,
    },
    ONLY,
)
