"""`unix://`: links within one machine. `shm://`: the same, and files are handed over instead of sent."""

from ._shm import ShmTransport
from ._unix import UnixTransport

__all__ = ["ShmTransport", "UnixTransport"]
