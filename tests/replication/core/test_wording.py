from __future__ import annotations

import pytest

from insync.replication.core.wording import counted, first_of


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


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, ""), (1, "0"), (3, "0, 1, 2"), (4, "0, 1, 2 and 1 more"), (1003, "0, 1, 2 and 1,000 more")],
)
def test_of_a_list_the_first_are_named_and_the_others_counted(count: int, said: str) -> None:
    assert first_of(range(count), 3, form=",") == said
