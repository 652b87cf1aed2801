from __future__ import annotations

import pytest

from insync.replication.core.wording import counted


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (counted(1, "partition"), "1 partition"),
        (counted(0, "partition"), "0 partitions"),
        (counted(2, "batch", "batches"), "2 batches"),
        (counted(1, "batch", "batches"), "1 batch"),
        (counted(1200, "record", form=","), "1,200 records"),
    ],
)
def test_one_thing_is_not_several(told: str, said: str) -> None:
    assert told == said
