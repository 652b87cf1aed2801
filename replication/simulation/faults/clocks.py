"""Wall clocks that are set wrong for a while: what is old is deleted by them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..world.node import Node
from .schedule import Fault

if TYPE_CHECKING:
    from .injector import Injector

DAYS = 30 * 86_400.0


def set_wall_clock(injector: Injector, fault: Fault, nodes: list[Node]) -> bool:
    """Set a wall clock days ahead or behind; later somebody sets it right."""
    node = nodes[0]
    node.wall_ahead = DAYS if fault.amount < 0.5 else -DAYS

    def set_right() -> None:
        node.wall_ahead = 0.0

    injector.cluster.later(fault.seconds, set_right)
    return True


KINDS = {"set the wall clock of": set_wall_clock}
