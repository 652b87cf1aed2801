"""Simulated transactions: coordinators and leaders that move, zombies, and messages that get lost or come twice.

The machines are those of nodes and clients: shard and coordinator, replica and gate, the producer's own. The world
between them is a model, drawn from a seed; the oracle knows what every producer intended and was told.
"""

from .oracle import Violated
from .world import Result, run

__all__ = ["Result", "Violated", "run"]
