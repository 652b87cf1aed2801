"""One replicated object in three versions, as a service would change it; and one state machine in two."""

from __future__ import annotations

from typing import Any

from insync.replication.state import Context, ReplicatedObject, StateMachine, command, query
from insync.replication.state._packing import pack, unpack
from insync.replication.state.machine import Read, Write


class ShopV1(ReplicatedObject):
    state_name = "Shop"

    def __init__(self) -> None:
        self.left: dict[str, int] = {}

    @command
    def stock(self, item: str, count: int) -> int:
        self.left[item] = self.left.get(item, 0) + count
        return self.left[item]

    @query
    def count(self, item: str) -> int:
        return self.left.get(item, 0)


class ShopV2(ShopV1):
    """A new field and a new command, and `stock` refuses what is not positive."""

    state_version = 2

    def migrate_1_to_2(self) -> None:
        self.notes: list[str] = [f"raised with {sum(self.left.values())}"]

    @command
    def stock(self, item: str, count: int) -> int:
        if self.context.version >= 2 and count <= 0:
            raise ValueError(f"{count} cannot be stocked")
        return super().stock(item, count)

    @command(since=2)
    def note(self, text: str) -> int:
        self.notes.append(text)
        return len(self.notes)

    @query(since=2)
    def all_notes(self) -> list[str]:
        return list(self.notes)


class ShopV3(ShopV2):
    """The field is a dict now, and items have prices."""

    state_version = 3

    def migrate_2_to_3(self) -> None:
        self.noted = dict.fromkeys(self.notes, self.context.version)
        del self.notes

    @command(since=2)
    def note(self, text: str) -> int:
        if self.context.version < 3:
            return super().note(text)
        self.noted[text] = len(self.noted)
        return len(self.noted)

    @query(since=2)
    def all_notes(self) -> list[str]:
        return list(self.notes if self.context.version < 3 else self.noted)


SHOPS: dict[int, type[ShopV1]] = {1: ShopV1, 2: ShopV2, 3: ShopV3}


class BrokenShop(ShopV2):
    def migrate_1_to_2(self) -> None:
        raise KeyError("no such field")


class Sum(StateMachine):
    state_name = "Sum"

    def __init__(self) -> None:
        self.state: list[Any] = [0]

    def apply(self, context: Context, command: bytes) -> bytes:
        self.state[0] += unpack(command)
        return pack(self.state[0])

    def snapshot(self, write: Write) -> None:
        write(pack(self.state))

    def restore(self, read: Read) -> None:
        self.state = unpack(read() or b"")


class SumAndCount(Sum):
    """Counts the commands, too."""

    state_version = 2

    def migrate_1_to_2(self) -> None:
        self.state.append(0)

    def apply(self, context: Context, command: bytes) -> bytes:
        if context.version >= 2:
            self.state[1] += 1
        return super().apply(context, command)
