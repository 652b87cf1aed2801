"""A view belongs to whoever was given it."""

from __future__ import annotations

import pytest

from insync.transport._payload import bytes_payload


def test_a_view_of_nothing_that_is_released_is_nobody_elses() -> None:
    first, second = bytes_payload(b""), bytes_payload(b"")
    first.view().release()
    assert len(second.view()) == 0
    assert len(first.view()) == 0
    first.release()
    with pytest.raises(ValueError, match="released"):
        first.view()
