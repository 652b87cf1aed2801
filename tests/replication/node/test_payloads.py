"""The memory of a payload that several partitions share goes back to the transport's pool, and not too early."""

from __future__ import annotations

import pytest

from insync.replication.node._payloads import SharedPayload
from insync.transport._payload import PayloadPool


def test_its_memory_is_used_again_though_slices_are_still_held() -> None:
    pool = PayloadPool()
    first = pool.take(1 << 20)
    where = first.view().obj
    shared = SharedPayload(first)
    held = [shared.slice(0, 1000), shared.slice(1000, 1000)]
    shared.release()
    shared.release()
    assert pool.take(1 << 20).view().obj is not where, "one user is not done"
    shared.release()
    assert pool.take(1 << 20).view().obj is where
    with pytest.raises(ValueError, match="released"):
        bytes(held[0])


def test_what_somebody_made_of_a_slice_is_never_overwritten() -> None:
    pool = PayloadPool()
    first = pool.take(1 << 20)
    where = first.view().obj
    shared = SharedPayload(first)
    kept = shared.slice(0, 1000)[10:20]
    shared.release()
    shared.release()
    assert pool.take(1 << 20).view().obj is not where
    assert len(bytes(kept)) == 10
