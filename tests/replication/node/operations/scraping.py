"""Asking a node by HTTP, as Prometheus and those who look after nodes do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs
import trio
from prometheus_client.parser import text_string_to_metric_families


@attrs.frozen
class Answered:
    """What a server said. `body` is what followed the head, to the last byte."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


async def converse(address: str, request: bytes) -> Answered:
    """Send bytes, read until the server ends the connection."""
    host, _, port = address.rpartition(":")
    with trio.fail_after(60):
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(request)
            await stream.send_eof()
            data = b"".join([chunk async for chunk in stream])
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:])
    assert "Content-Length" in headers
    return Answered(int(lines[0].split(" ")[1]), headers, body)


async def get(address: str, path: str, *, method: str = "GET", accept: str = "*/*") -> Answered:
    head = f"{method} {path} HTTP/1.1\r\nHost: {address}\r\nAccept: {accept}\r\n\r\n"
    answered = await converse(address, head.encode())
    assert method == "HEAD" or int(answered.headers["Content-Length"]) == len(answered.body)
    return answered


class Scraped:
    """One scrape: a value by the metric's name and some of its labels."""

    def __init__(self, text: str) -> None:
        families = list(text_string_to_metric_families(text))
        self.samples = [sample for family in families for sample in family.samples]
        self.types = {family.name: family.type for family in families}
        self.helps = {family.name: family.documentation for family in families}

    def value(self, name: str, **labels: str) -> float:
        """The sum over all samples that have these labels; fails if there is none."""
        found = [
            each.value for each in self.samples if each.name == name and labels.items() <= each.labels.items()
        ]
        assert found, f"{name} {labels} was not told"
        return sum(found)

    def has(self, name: str) -> bool:
        return any(each.name == name for each in self.samples)


async def scrape(address: str) -> Scraped:
    answered = await get(address, "/metrics")
    assert answered.status == 200 and answered.headers["Content-Type"].startswith("text/plain")
    return Scraped(answered.body.decode())
