"""A key-value store on top of a log: every process that opens it applies the same commands in the same order.

The log is all that is shared. A write is a command in the log, and done once our own copy has applied it. A read
that must be current first writes a barrier: whatever was done before the read began stands before the barrier, so a
copy that has come to the barrier has it. Each copy is written to a file now and then, and goes on from there.

    async with open_store(servers, "alice", Path("alice.json")) as store:
        await store.put("colour", "red")
        assert await store.get("colour") == "red"
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from insync.replication import Consumer, Producer
from insync.replication.client import ClientError, ConsumerRecord

TOPIC = "kv"
"""Of one partition: its order is the order of all commands. `insync topic create kv`."""
LOG = (TOPIC, 0)


class FencedError(Exception):
    """Somebody else has opened the store under our name since; what was asked for was not done."""


class Machine:
    """The state, and what each command does to it; the same everywhere, so it looks at nothing but these."""

    def __init__(self) -> None:
        self.applied = 0
        """The offset of the next command."""
        self.data: dict[str, Any] = {}
        self.sessions: dict[str, list[Any]] = {}
        """By name of a writer: its token, the number of its last command, and the answer to that."""

    def apply(self, offset: int, command: dict[str, Any]) -> Any:
        """The answer to the command; that of a command that is repeated is the same again."""
        self.applied = offset + 1
        if command["do"] == "barrier":
            return None
        if command["do"] == "open":
            # The offset is a token that is greater than any before: whoever has an older one is shut out.
            self.sessions[command["writer"]] = [offset, 0, None]
            return None
        token, last, answer = self.sessions[command["writer"]]
        if command["token"] != token:
            return {"fenced": True}
        if command["number"] > last:
            answer = {"put": self._put, "delete": self._delete, "swap": self._swap}[command["do"]](command)
            self.sessions[command["writer"]] = [token, command["number"], answer]
        return answer

    def _put(self, command: dict[str, Any]) -> bool:
        self.data[command["key"]] = command["value"]
        return True

    def _delete(self, command: dict[str, Any]) -> bool:
        return self.data.pop(command["key"], None) is not None

    def _swap(self, command: dict[str, Any]) -> bool:
        if self.data.get(command["key"]) != command["old"]:
            return False
        return self._put(command)

    def snapshot(self) -> dict[str, Any]:
        return {"applied": self.applied, "data": self.data, "sessions": self.sessions}

    def restore(self, snapshot: dict[str, Any]) -> None:
        self.applied, self.data, self.sessions = (snapshot[key] for key in ("applied", "data", "sessions"))


class Store:
    """One copy of the state, and one writer; made by `open_store`."""

    def __init__(
        self, producer: Producer, consumer: Consumer, writer: str, file: Path, snapshot_every: int
    ) -> None:
        self.machine = Machine()
        self.writer = writer
        self._producer, self._consumer = producer, consumer
        self._file, self._every = file, snapshot_every
        self._written = 0
        self._token = -1
        self._number = 0
        self._writing = trio.Lock()
        self._answers: dict[int, Any] = {}
        self._moved = trio.Event()

    # Writing

    async def put(self, key: str, value: Any) -> None:
        """Raises `FencedError`; so do `delete` and `swap`."""
        await self._command("put", key=key, value=value)

    async def delete(self, key: str) -> bool:
        """Whether there was something."""
        return await self._command("delete", key=key)

    async def swap(self, key: str, old: Any, value: Any) -> bool:
        """Put the value if `old` is what is there (None: nothing); whether it was."""
        return await self._command("swap", key=key, old=old, value=value)

    async def _command(self, do: str, **arguments: Any) -> Any:
        command: dict[str, Any] = {"do": do, "writer": self.writer, "token": self._token, **arguments}
        # One after the other: if a command has to be repeated none with a greater number may have come before.
        async with self._writing:
            self._number += 1
            number = command["number"] = self._number
            await self._append(command)
        while number not in self._answers:
            await self._moved.wait()
        answer = self._answers.pop(number)
        if answer == {"fenced": True}:
            raise FencedError(f"{self.writer!r} was opened by somebody else")
        return answer

    async def _append(self, command: dict[str, Any]) -> int:
        """Its offset. Repeated until it is in the log: the machine knows a command that it has seen already."""
        while True:
            try:
                return (await (await self._producer.send(TOPIC, command, partition=0)).wait()).offset
            except ClientError as error:
                if error.outcome == "absent" and not error.retriable:
                    raise

    # Reading

    async def get(self, key: str) -> Any:
        """What is there now: every write that was done before this was called counts, by whomever and wherever.

        To ask the leader where the log ends would not do: a leader that has been replaced and does not know it yet
        tells an end that is not the end any more. What it cannot do is commit a barrier.
        """
        await self._come_to(await self._append({"do": "barrier"}))
        return self.machine.data.get(key)

    def get_stale(self, key: str) -> Any:
        """What our copy says: quick, and perhaps no longer so."""
        return self.machine.data.get(key)

    async def _come_to(self, offset: int) -> None:
        while self.machine.applied <= offset:
            await self._moved.wait()

    # Following the log

    async def begin(self) -> None:
        """Go on from the snapshot, if there is one, else from the first command."""
        if self._file.exists():
            self.machine.restore(json.loads(self._file.read_text()))
            self._written = self.machine.applied
        self._consumer.assign([LOG])
        self._consumer.seek(LOG, self.machine.applied)

    async def open_session(self) -> None:
        """From here on nobody else writes under our name."""
        self._token = await self._append({"do": "open", "writer": self.writer})
        await self._come_to(self._token)

    async def follow(self) -> None:
        """Apply what is committed, for ever."""
        async for record in self._consumer:
            self._apply(record)
            if self.machine.applied - self._written >= self._every:
                await self.save()

    def _apply(self, record: ConsumerRecord) -> None:
        command = record.value
        answer = self.machine.apply(record.offset, command)
        if command.get("writer") == self.writer and command.get("token") == self._token:
            self._answers[command["number"]] = answer
        self._moved.set()
        self._moved = trio.Event()

    async def save(self) -> None:
        """Write the snapshot whole or not at all."""
        self._written = self.machine.applied
        await trio.to_thread.run_sync(_replace, self._file, json.dumps(self.machine.snapshot()))


def _replace(file: Path, text: str) -> None:
    draft = file.with_suffix(".new")
    with draft.open("w") as written:
        written.write(text)
        written.flush()
        os.fsync(written.fileno())
    draft.replace(file)


@asynccontextmanager
async def open_store(
    servers: str | Sequence[str], writer: str, file: Path, *, snapshot_every: int = 1000
) -> AsyncIterator[Store]:
    """A copy of the store, with `writer` as the name under which nobody else may write.

    Args:
      servers: URLs of some nodes.
      writer: Opening another store under the same name shuts this one out.
      file: Where this copy is kept; of no other copy.
      snapshot_every: After so many commands the file is written anew.

    If the log no longer holds what comes after the snapshot this fails with `OffsetOutOfRangeError`: begin with the
    file of another copy.
    """
    async with (
        Producer(servers, linger_ms=0, value_serializer=lambda value: json.dumps(value).encode()) as producer,
        Consumer(servers, auto_offset_reset="none", value_deserializer=json.loads) as consumer,
        trio.open_nursery() as nursery,
    ):
        store = Store(producer, consumer, writer, file, snapshot_every)
        await store.begin()
        nursery.start_soon(store.follow)
        await store.open_session()
        yield store
        nursery.cancel_scope.cancel()
