"""The errors that users meet."""

from __future__ import annotations

import insync.storage


def test_errors_of_this_room_have_one_root() -> None:
    errors = [getattr(insync.storage, name) for name in insync.storage.__all__ if name.endswith("Error")]
    assert len(errors) > 10
    for error in errors:
        assert issubclass(error, insync.storage.StorageError), error
        assert error.__doc__, error
