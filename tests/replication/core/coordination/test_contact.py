"""What a leader may conclude from its followers' fetches."""

from __future__ import annotations

from insync.replication.core.coordination.contact import Contact


def test_all_who_may_lead_next_count() -> None:
    contact = Contact()
    assert contact.since(1, [1], 9.0) == 9.0
    contact.fetched(2, 5.0)
    assert contact.since(1, [1, 2], 9.0) == 5.0
    assert contact.since(1, [1, 2, 3], 9.0) == float("-inf")
    contact.fetched(3, 4.0)
    assert contact.since(1, [1, 2, 3], 9.0) == 4.0
    assert contact.since(1, [1, 2], 9.0) == 5.0


def test_a_late_fetch_proves_nothing_less() -> None:
    contact = Contact()
    contact.fetched(2, 5.0)
    contact.fetched(2, 3.0)
    assert contact.since(1, [1, 2], 9.0) == 5.0
