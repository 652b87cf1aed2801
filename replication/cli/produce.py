"""`insync produce`: lines to records."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import attrs
from cyclopts import Parameter, validators

from .clusters import Json, Servers, known, print_json, warnings_shown
from .errors import CommandError

if TYPE_CHECKING:
    from ..client import Deliveries, Producer

_BLOCK_BYTES = 1 << 18


def produce(
    topic: str,
    /,
    *,
    key_separator: str | None = None,
    file: Path | None = None,
    acks: Literal["all", "1", "0"] = "all",
    partition: Annotated[int | None, Parameter(validator=validators.Number(gte=0))] = None,
    servers: Servers = "",
    json: Json = False,
) -> int:
    """Write each line of standard input to a topic as one record.

    Ends with the input, when every record is acknowledged; says how many that were.

    Example: `printf 'eu:order 1\\nus:order 2\\n' | insync produce orders --key-separator :`

    Parameters
    ----------
    topic
        An existing topic.
    key_separator
        What separates key and value within a line; lines without it have no key.
    file
        Read this file instead of standard input.
    acks
        When a record counts as written: all in-sync replicas have it, its leader (1) has it, or it was sent (0).
    partition
        Write to this partition, whatever the keys.
    """
    from .running import run

    separator = None if key_separator is None else key_separator.encode()

    async def produce_it() -> None:
        from ..client import Producer

        with ExitStack() as stack, warnings_shown():
            source = 0 if file is None else stack.enter_context(file.open("rb")).fileno()
            wanted: Any = acks if acks == "all" else int(acks)
            async with Producer(known(servers), acks=wanted) as producer:
                sent = await _Sending(producer, topic, separator, partition).run(source)
        if json:
            print_json({"topic": topic, "records": sent})
        else:
            print(f"{sent} records written to {topic}")

    return run(produce_it)


@attrs.define(eq=False)
class _Sending:
    producer: Producer
    topic: str
    separator: bytes | None
    partition: int | None
    _unsettled: deque[Deliveries] = attrs.Factory(deque)

    async def run(self, source: int) -> int:
        """Send all lines of a file descriptor; gives their number. Raises the first failure."""
        sent = 0
        await self.producer.prepare(self.topic)
        async for lines in read_lines(source):
            sent += len(lines)
            self._unsettled.append(await self._send(lines))
            while self._unsettled and self._unsettled[0].done:
                await self._unsettled.popleft().wait()
        await self.producer.flush()
        while self._unsettled:
            await self._unsettled.popleft().wait()
        return sent

    async def _send(self, lines: list[bytes]) -> Deliveries:
        if self.separator is None:
            return await self.producer.send_many(self.topic, lines, partition=self.partition)
        keys, values = split_keys(lines, self.separator)
        return await self.producer.send_many(self.topic, values, keys, partition=self.partition)


def split_keys(lines: list[bytes], separator: bytes) -> tuple[list[bytes | None], list[bytes]]:
    """Keys and values of lines; the key ends at the first separator, a line without one is all value."""
    if not separator:
        raise CommandError(
            "--key-separator is empty; give the text that ends the key, e.g. --key-separator :"
        )
    keys: list[bytes | None] = []
    values: list[bytes] = []
    for line in lines:
        key, found, value = line.partition(separator)
        keys.append(key if found else None)
        values.append(value if found else line)
    return keys, values


async def read_lines(source: int) -> AsyncIterator[list[bytes]]:
    """Lines without their newlines, as they arrive; a last one without a newline counts."""
    import trio

    rest = b""
    while block := await trio.to_thread.run_sync(os.read, source, _BLOCK_BYTES, abandon_on_cancel=True):
        lines = (rest + block).split(b"\n")
        rest = lines.pop()
        if lines:
            yield lines
    if rest:
        yield [rest]
