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

from ..core.wording import counted
from .clusters import Json, Servers, known, moment, print_json, say, warnings_shown
from .errors import CommandError, UsageError

if TYPE_CHECKING:
    from ..client import Deliveries, Delivery, Producer

Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
_BLOCK_BYTES = 1 << 18


def produce(
    topic: str,
    /,
    *,
    key_separator: str | None = None,
    file: Path | None = None,
    acks: Literal["all", "1", "0"] = "all",
    partition: Annotated[int | None, Parameter(validator=validators.Number(gte=0))] = None,
    header: Annotated[tuple[str, ...], Parameter(show_default=False)] = (),
    timestamp: str | None = None,
    compression: Compression = "none",
    max_request_size: Annotated[int | None, Parameter(validator=validators.Number(gt=0))] = None,
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
    header
        NAME=VALUE, a header of every record; may be given several times.
    timestamp
        The time of every record instead of now: milliseconds since 1970, or ISO 8601.
    compression
        With which codec batches are compressed.
    max_request_size
        The largest request, and so the largest record, in bytes; 1 MiB by default. Topics have their own limit.
    """
    from .running import run

    separator = None if key_separator is None else key_separator.encode()
    headers = [_header(each) for each in header]
    timestamp_ms = None if timestamp is None else moment("--timestamp", timestamp)
    options: dict[str, Any] = {"compression_type": compression}
    if max_request_size is not None:
        options["max_request_size"] = max_request_size

    async def produce_it() -> None:
        from ..client import Producer

        with ExitStack() as stack, warnings_shown():
            source = 0 if file is None else stack.enter_context(file.open("rb")).fileno()
            wanted: Any = acks if acks == "all" else int(acks)
            async with Producer(known(servers), acks=wanted, **options) as producer:
                sending = _Sending(producer, topic, separator, partition, headers, timestamp_ms)
                sent = await sending.run(source)
        if json:
            print_json({"topic": topic, "records": sent})
        else:
            say(f"{counted(sent, 'record')} written to {topic}")

    return run(produce_it)


@attrs.define(eq=False)
class _Sending:
    producer: Producer
    topic: str
    separator: bytes | None
    partition: int | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int | None
    _unsettled: deque[Deliveries | Delivery] = attrs.Factory(deque)

    async def run(self, source: int) -> int:
        """Send all lines of a file descriptor; gives their number. Raises the first failure."""
        sent = 0
        await self.producer.prepare(self.topic)
        async for lines in read_lines(source):
            sent += len(lines)
            await self._send(lines)
            while self._unsettled and self._unsettled[0].done:
                await self._unsettled.popleft().wait()
        await self.producer.flush()
        while self._unsettled:
            await self._unsettled.popleft().wait()
        return sent

    async def _send(self, lines: list[bytes]) -> None:
        keys: list[bytes | None] | None = None
        if self.separator is not None:
            keys, lines = split_keys(lines, self.separator)
        if not self.headers:
            self._unsettled.append(
                await self.producer.send_many(
                    self.topic, lines, keys, partition=self.partition, timestamp_ms=self.timestamp_ms
                )
            )
            return
        for index, line in enumerate(lines):
            self._unsettled.append(
                await self.producer.send(
                    self.topic,
                    line,
                    key=None if keys is None else keys[index],
                    headers=self.headers,
                    partition=self.partition,
                    timestamp_ms=self.timestamp_ms,
                )
            )


def _header(text: str) -> tuple[str, bytes | None]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise UsageError(f"--header {text!r} is not a header; give NAME=VALUE")
    return name, value.encode()


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
