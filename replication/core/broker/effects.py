"""What a broker asks of its driver. The driver carries effects out in the order in which they stand.

The most frequent are tuples: a record causes several of them, and a tuple costs a third of a value of attrs.
"""

from __future__ import annotations

from typing import NamedTuple

from ..partition import effects as fx
from ..types import PartitionId


class Job(NamedTuple):
    """What one replica asks of its host: to change its log, or to write its change of role into the log book.

    Jobs on one log are carried out and reported (`events.Report`) in the order in which they were asked for.
    """

    partition: PartitionId
    effect: fx.Effect


Effect = Job
