"""What a broker is told. Events are handled one after the other, each with one reading of the driver's clock."""

from __future__ import annotations

from typing import NamedTuple

from ..partition import events as ev
from ..types import PartitionId


class Report(NamedTuple):
    """Something that one replica is to know: above all what became of a `Job` on its log.

    Of a replica that has gone meanwhile it is ignored.
    """

    partition: PartitionId
    event: ev.Event


Event = Report
