"""A register, a queue and a set as services of the simulator."""

from __future__ import annotations

from insync.replication.state._batteries import DictMachine, SetState
from insync.replication.state._packing import pack, unpack
from insync.replication.state.machine import Context, Read, StateMachine, Write
from insync.replication.state.objects import ObjectMachine
from insync.replication.state.testing import MachineService

REGISTER = [pack([0, "x", value]) for value in range(4)] + [pack([2, "x", 1, 2]), pack([1, "x"])]
CHANGES = [b"a", b"b", b"take"]
MEMBERS = [pack(["add", ["x"], {}]), pack(["discard", ["x"], {}])]


class Queue(StateMachine):
    """First in, first out."""

    def __init__(self) -> None:
        self.items: list[bytes] = []

    def apply(self, context: Context, command: bytes) -> bytes:
        if command == b"take":
            return self.items.pop(0)
        self.items.append(command)
        return b""

    def snapshot(self, write: Write) -> None:
        write(pack(self.items))

    def restore(self, read: Read) -> None:
        self.items = unpack(read() or b"")


SERVICES = {
    "register": lambda: MachineService(DictMachine, REGISTER),
    "queue": lambda: MachineService(Queue, CHANGES),
    "set": lambda: MachineService(lambda: ObjectMachine(SetState()), MEMBERS),
}
