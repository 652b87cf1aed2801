"""The parts of a broker around a replica, as the replica calls them."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ..types import PartitionId
from . import effects as fx


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """One call for each thing that a replica tells. A part takes note, and does not call the replica back: the
    replica is in the middle of a step.
    """

    emit: Callable[[fx.Effect], None]
    """An effect for the driver, in the order of the calls."""
    replied: Callable[[PartitionId, fx.ReplyProduce], None]
    deletion_replied: Callable[[PartitionId, fx.ReplyDeleteRecords], None]
    wake: Callable[[PartitionId], None]
    """Parked fetches of the partition are worth another look."""
    want: Callable[[PartitionId, fx.FetchNext], None]
    stop: Callable[[PartitionId], None]
    """The outstanding `FetchNext` is void; its answer will be ignored."""
    truncate: Callable[[fx.Truncate], None]
    propose: Callable[[PartitionId, fx.ProposeIsr], None]
    read_again: Callable[[fx.ReadRecord], None]
    retire: Callable[[PartitionId, fx.Retire], None]
    add: Callable[[PartitionId, fx.AddToTransaction], None]
    admitted: Callable[[PartitionId, fx.Admission], None]
