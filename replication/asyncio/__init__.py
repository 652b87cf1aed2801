"""Nodes and clients for programs on asyncio.

Each runs on trio in a thread of its own; the methods are those of the trio ones, all of them async. A task that is
cancelled stops what it had asked for, and what had been read for it comes again. Why a thread: decision 25.
"""

from .admin import Admin
from .consumer import Consumer
from .node import Node
from .producer import Deliveries, Delivery, Producer

__all__ = [
    "Node",
    "Producer",
    "Delivery",
    "Deliveries",
    "Consumer",
    "Admin",
]
