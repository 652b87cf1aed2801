"""Records: find some by offset, time or content, look at one, produce one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from markupsafe import Markup
from nicegui import ui

from ....replication.asyncio import Consumer, Producer
from ....replication.cli.clusters import moment as moment_of
from ....replication.client import ConsumerRecord
from ....replication.errors import ReplicationError
from ....transport import TransportError
from .._browse import CLIENT, MOST_SHOWN, BadSearchError, Found, Search, search
from .._decode import WHOLE, decoders, readable
from .._login import Login
from ._frame import Site, topic_select
from ._markup import joined, moment, note, table

_STARTS = {"newest": "the newest", "earliest": "the beginning", "offset": "offset ...", "time": "time ..."}


_NARROW, _WIDE, _WIDER = "min-width:7em", "min-width:17em", "min-width:21em"


class RecordsPage:
    """The form, what it found, and the dialog for one record."""

    def __init__(self, site: Site, topic: str) -> None:
        self._site = site
        with ui.row().classes("items-end"):
            self._topic = topic_select(site, topic)
            self._partition = ui.input("Partition (all if empty)").style("min-width:13em")
            self._start = ui.select(_STARTS, label="From", value="newest")
            self._value = ui.input("Offset or time (2026-03-01T12:00)").style(_WIDER)
            self._key = ui.input("Key holds")
            self._text = ui.input("Key, value or header holds").style(_WIDE)
            self._decoder = ui.select(list(decoders()), label="Shown as", value="auto").style(_NARROW)
            self._count = ui.number("How many", value=50, min=1, max=MOST_SHOWN, precision=0)
        with ui.row().style("margin-top:.8em"):
            ui.button("Show", on_click=self._show)
            self._on = ui.button("Go on", on_click=self._go_on)
            self._on.set_visibility(False)
        self._said = ui.html("", sanitize=False).props('role="status"')
        self._table = ui.html("", sanitize=False)
        with ui.row().classes("items-end") as self._one:
            self._which = ui.select({}, label="Look at one record whole")
            ui.button("Look", on_click=self._whole)
        self._one.set_visibility(False)
        self._found: Found | None = None
        self._dialog = ui.dialog()
        if self._topic.value:
            ui.timer(0, self._show, once=True)

    async def _show(self) -> None:
        await self._guarded(self._search)

    async def _go_on(self) -> None:
        await self._guarded(lambda: self._search(self._found))

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except (ReplicationError, TransportError, ValueError) as error:
            self._said.set_content(str(Markup('<p class="banner error" role="alert">{}</p>').format(error)))

    async def _search(self, before: Found | None = None) -> None:
        wanted = self._wanted()
        look = self._site.watcher.look
        info = look.topics.get(wanted.topic) if look is not None else None
        if info is None:
            raise BadSearchError(
                f"there is no topic {wanted.topic!r}" if wanted.topic else "choose a topic first"
            )
        numbers = sorted(each.partition for each in info.partitions)
        after = before.next if before is not None else None
        self._said.set_content(str(note("Reading ...")))
        async with Consumer(self._site.watcher.servers, **CLIENT) as consumer:
            found = await search(consumer, wanted, numbers, after)
        self._found = found
        decoder = str(self._decoder.value)
        self._table.set_content(str(_table(found, decoder)))
        more = f"Stopped: {found.stopped}." if found.stopped else "That is all there is."
        said = note(f"{len(found.records)} shown, {found.scanned:,} looked through. {more}")
        lost = joined(
            Markup('<p class="banner warning">Cannot be read: {}</p>').format(each) for each in found.skipped
        )
        self._said.set_content(str(said + lost))
        self._on.set_visibility(bool(found.stopped) and wanted.start != "newest")
        self._which.set_options(
            {index: f"{each.partition}: {each.offset}" for index, each in enumerate(found.records)}
        )
        self._one.set_visibility(bool(found.records))

    def _wanted(self) -> Search:
        start = str(self._start.value)
        given = str(self._value.value or "").strip()
        value = 0
        if start == "offset":
            if not given.isdecimal():
                raise BadSearchError(f"{given!r} is not an offset: give a number, 0 or more")
            value = int(given)
        elif start == "time":
            value = moment_of("From", given)
        partition = str(self._partition.value or "").strip()
        if partition and not partition.isdecimal():
            raise BadSearchError(f"{partition!r} is not a partition: give its number")
        return Search(
            topic=str(self._topic.value or ""),
            partition=int(partition) if partition else None,
            start=start,
            value=value,
            key=str(self._key.value or "").encode(),
            text=str(self._text.value or "").encode(),
            count=int(self._count.value or 50),
        )

    def _whole(self) -> None:
        if self._found is None or self._which.value is None:
            return
        record = self._found.records[self._which.value]
        self._dialog.clear()
        with self._dialog, ui.card().style("max-width:90vw;width:60em"):
            ui.html(one(record, str(self._decoder.value)), sanitize=False)
            ui.button("Close", on_click=self._dialog.close)
        self._dialog.open()


def _table(found: Found, decoder: str) -> Markup:
    rows = (
        (
            record.partition,
            record.offset,
            moment(record.timestamp_ms / 1000),
            _pre(readable(record.key, decoder, 200)),
            _pre(readable(record.value, decoder)),
            _headers(record, 200),
        )
        for record in found.records
    )
    return table(
        "Records in the order of their partitions and offsets.",
        ("Partition", "Offset", "Time", "Key", "Value", "Headers"),
        rows,
        numbers=(0, 1),
    )


def _pre(text: str) -> Markup:
    return Markup("<pre>{}</pre>").format(text)


def _headers(record: ConsumerRecord, most: int) -> Markup:
    return joined(
        Markup("<div>{}: {}</div>").format(name[:most], readable(value, "auto", most))
        for name, value in record.headers[:50]
    )


_ONE = Markup(
    "<h2>{}-{}, offset {}</h2><p>{}, leader epoch {}</p><h3>Key</h3>{}<h3>Value</h3>{}<h3>Headers</h3>{}"
)


def one(record: ConsumerRecord, decoder: str) -> Markup:
    """One record with as much of it as a browser can bear."""
    return _ONE.format(
        record.topic,
        record.partition,
        record.offset,
        moment(record.timestamp_ms / 1000),
        record.leader_epoch,
        _pre(readable(record.key, decoder, WHOLE)),
        _pre(readable(record.value, decoder, WHOLE)),
        _headers(record, 2000),
    )


def produce_form(site: Site, login: Login | None = None) -> None:
    """Write one record, from text."""
    with ui.row().classes("items-end"):
        topic = topic_select(site)
        key = ui.input("Key (none if empty)")
        value = ui.textarea("Value")
    said = ui.label("").props('role="status"')

    async def produce() -> None:
        if not topic.value:
            said.set_text("choose a topic first")
            return
        try:
            await site.changing(login, "produce")
            async with Producer(site.watcher.servers, client_id="insync-dashboard") as producer:
                delivery = await producer.send_and_wait(
                    str(topic.value),
                    str(value.value or "").encode(),
                    key=str(key.value).encode() if key.value else None,
                )
        except (ReplicationError, TransportError) as error:
            said.set_text(f"not written: {error}")
            return
        said.set_text(f"written to {topic.value}-{delivery.partition} at offset {delivery.offset}")

    ui.button("Produce this record", on_click=produce)
