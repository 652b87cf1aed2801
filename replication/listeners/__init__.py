"""Listeners: a handler over the records of a consumer group, with commits, retries and dead letters. For trio.

listener = Listener(servers, group_id="billing", topics=["orders"], ack_mode=AckMode.RECORD, concurrency=4)

@listener.handler
async def charge(record): ...

await listener.run()    # until `stop` or SIGTERM: finishes what is in hand, commits, leaves the group

The same for asyncio is in `insync.replication.listeners.asyncio`, for threads in `.blocking`.
"""

from ._progress import AckMode
from .errors import HandlerFailedError, ListenerError, RecordFailedError
from .listener import Acknowledgment, Listener
from .settings import ListenerSettings
from .status import ListenerStatus, PartitionStatus

__all__ = [
    "AckMode",
    "Acknowledgment",
    "HandlerFailedError",
    "Listener",
    "ListenerError",
    "ListenerSettings",
    "ListenerStatus",
    "PartitionStatus",
    "RecordFailedError",
]
