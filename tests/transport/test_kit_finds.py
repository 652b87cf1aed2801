"""The kit fails when it should: for each group of promises transports that break one, and the case that tells."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import threading
import time
from typing import ClassVar

import attrs
import pytest
import trio

from insync.transport import ConnectError, registry
from insync.transport._memory import MemoryLink, MemoryListener, MemoryTransport
from insync.transport._payload import bytes_payload
from insync.transport.abc import Capabilities
from insync.transport.frames import Frame, Limits, crc32c, decode_header, decode_hello, encode_hello
from insync.transport.kit import _frame
from insync.transport.kit._frame import Env, cases_for, run_case
from insync.transport.ranges import is_range


@pytest.fixture(autouse=True)
def mem_as_it_was():
    """The kit registers what it tests."""
    yield
    registry.register("mem", MemoryTransport, override=True)


_numbers = itertools.count()


def env_of(broken):
    class BrokenEnv(Env):
        transport = broken()

        def listen_url(self):
            return f"mem://broken/listener-{next(_numbers)}"

        def dead_url(self):
            return "mem://broken/nobody"

        def malformed_urls(self):
            return ["mem://", "mem://net", "mem://net/"]

    return BrokenEnv()


async def outcome(broken, name):
    """What the case says of the transport; None if it passes."""
    env = env_of(broken)
    (case,) = [case for case in cases_for(env) if case.name == name]
    try:
        with trio.fail_after(15):
            await run_case(case, env)
    except Exception as error:  # noqa: BLE001 - any way of failing is a failure
        return error
    return None


def with_links(**methods):
    """mem, but with some methods of its links replaced."""
    link = type("BrokenLink", (MemoryLink,), methods)

    class Broken(MemoryTransport):
        async def connect(self, endpoint):
            return changed(await super().connect(endpoint))

        async def listen(self, endpoint):
            listener = await super().listen(endpoint)
            accept = listener.accept

            async def accept_changed():
                return changed(await accept())

            listener.accept = accept_changed
            return listener

    def changed(found):
        found.__class__ = link
        return found

    return Broken


# A: addresses.


class ParsesAnything(MemoryTransport):
    def parse(self, url):
        return url


class ParsesToSomethingLonger(MemoryTransport):
    def parse(self, url):
        return attrs.evolve(url, path=url.path + "x")


class HangsInsteadOfRefusing(MemoryTransport):
    async def connect(self, endpoint):
        try:
            return await super().connect(endpoint)
        except ConnectError:
            await trio.sleep_forever()


class SharesAddresses(MemoryTransport):
    async def listen(self, endpoint):
        await trio.lowlevel.checkpoint()
        return MemoryListener(endpoint)


# B: framing.


async def swap(self, head, parts, *, more=False):
    """Each second frame overtakes the one before."""
    kept, self.kept = getattr(self, "kept", None), None
    if kept is None:
        self.kept = (bytes(head), [bytes(part) for part in parts])
        return
    await MemoryLink.send(self, head, parts)
    await MemoryLink.send(self, *kept)


async def keep_no_copy(self, head, parts, *, more=False):
    """The buffers of the sender are what arrives."""
    await trio.lowlevel.checkpoint()
    self._out.messages.append((bytes(head), parts[0] if parts else b""))
    self._out.changed.unpark_all()


async def cut_short(self, head, parts, *, more=False):
    """What is above a mebibyte loses its tail."""
    whole = b"".join(bytes(part) for part in parts)
    await MemoryLink.send(self, head, [whole[: 1 << 20]])


# C: ranges.


async def padded(self, head, parts, *, more=False):
    """A file that ends inside a range is continued with zeros."""
    filled = [
        os.pread(part.fileno(), part.length, part.offset).ljust(part.length, b"\0")
        if is_range(part)
        else part
        for part in parts
    ]
    await MemoryLink.send(self, head, filled)


async def from_the_start(self, head, parts, *, more=False):
    """Offsets of ranges are forgotten."""
    wrong = [os.pread(part.fileno(), part.length, 0) if is_range(part) else part for part in parts]
    await MemoryLink.send(self, head, wrong)


# D: requests.


async def twice(self, head, parts, *, more=False):
    """Each frame arrives two times."""
    for _ in range(2):
        await MemoryLink.send(self, head, parts)


async def lossy(self, head, parts, *, more=False):
    """Each 50th frame is lost, the link lives."""
    self.count = getattr(self, "count", 0) + 1
    if self.count % 50:
        await MemoryLink.send(self, head, parts)
    else:
        await trio.lowlevel.checkpoint()


# E: ends.


async def forgets(self):
    """Closing takes back what was sent."""
    self._close(broken=True)
    await trio.lowlevel.checkpoint()


def sleeps_on(self):
    """Who waits on a link that is aborted is not woken."""
    self._closed = True


async def reopens(self):
    """Closing does nothing at all."""
    await trio.lowlevel.checkpoint()


# F: hostile peers.


async def unchecked(self):
    """Headers and CRCs are believed."""
    head, payload = await self._next()
    sealed = bytes(head[:44]) + crc32c(head[:44]).to_bytes(4, "little")
    header = decode_header(sealed, Limits(max_body_bytes=1 << 32, max_payload_bytes=1 << 64))
    return [Frame(header, bytes(head[48:]), bytes_payload(payload))]


async def generous(self):
    """Any length is as good as another."""
    limits, self.limits = self.limits, type(self.limits)(max_body_bytes=1 << 30, max_payload_bytes=1 << 40)
    try:
        return await MemoryLink.recv_many(self)
    finally:
        self.limits = limits


# G: flow.


async def boundless(self, head, parts, *, more=False):
    """Everything is taken at once, however little is read."""
    await trio.lowlevel.checkpoint()
    self._check_sending()
    self._out.put(bytes(head), b"".join(map(bytes, parts)))


async def slow_all(self, head, parts, *, more=False):
    """While one link is full, all others wait with it."""
    stuck.append(self)
    try:
        await MemoryLink.send(self, head, parts)
    finally:
        stuck.remove(self)
    while stuck:
        await stuck[0]._out.changed.park()


stuck = []


# H: identity.


async def nameless(self):
    """The peer's HELLO is made anonymous on its way."""
    hello = decode_hello(await MemoryLink.recv_hello(self))
    return encode_hello(attrs.evolve(hello, incarnation=1))


class FalseNames(with_links(peer_name=property(lambda self: "isr://other/client"))):
    caps = Capabilities(same_host_only=True, half_close=True, authenticated=True, one_process=True)


class NamesNobody(MemoryTransport):
    """Says that its links authenticate, so that it needs no secret anywhere, and lets everybody in."""

    caps = Capabilities(same_host_only=True, half_close=True, authenticated=True, one_process=True)

    async def connect(self, endpoint):
        link = await super().connect(endpoint)
        link.caps = self.caps
        return link


# I: determinism.


async def by_the_wall(self, head, parts, *, more=False):
    """Frames take as long as the machine happens to need."""
    await trio.sleep(time.perf_counter() % 0.01 + random.SystemRandom().random() / 100)
    await MemoryLink.send(self, head, parts)


BROKEN = [
    ("A_malformed_addresses_are_refused", ParsesAnything),
    ("A_a_dead_address_refuses_soon", HangsInsteadOfRefusing),
    ("A_a_second_listener_is_refused", SharesAddresses),
    ("B_order_is_kept", with_links(send=swap)),
    ("B_sent_buffers_may_be_reused", with_links(send=keep_no_copy)),
    ("B_all_sizes_arrive", with_links(send=cut_short)),
    ("B_the_largest_payload_arrives", with_links(send=cut_short)),
    ("C_a_range_beyond_the_end_breaks_the_link", with_links(send=padded)),
    ("C_ranges_anywhere", with_links(send=from_the_start)),
    ("D_requests_one_by_one", with_links(send=twice)),
    ("D_answers_may_overtake", with_links(send=lossy)),
    ("E_a_clean_close_delivers_everything", with_links(aclose=forgets)),
    ("E_abort_wakes_both_tasks", with_links(abort=sleeps_on)),
    ("E_a_clean_close_delivers_everything", with_links(aclose=reopens)),
    ("F_every_flipped_bit_of_a_header_is_found", with_links(recv_many=unchecked)),
    ("F_every_damaged_byte_behind_a_header_is_found", with_links(recv_many=unchecked)),
    ("F_lengths_above_the_limits_are_refused", with_links(recv_many=generous)),
    ("G_a_reader_that_stops_holds_the_sender_back", with_links(send=boundless)),
    ("G_a_slow_peer_does_not_slow_another", with_links(send=slow_all)),
    ("H_the_newest_incarnation_wins", with_links(recv_hello=nameless)),
    ("H_strangers_are_refused", FalseNames),
    ("H_strangers_are_refused", NamesNobody),
    ("I_the_same_seed_gives_the_same_trace", with_links(send=by_the_wall)),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "broken"), BROKEN, ids=[f"{name}-{number}" for number, (name, _) in enumerate(BROKEN)]
)
async def test_a_broken_transport_fails(name, broken):
    assert await outcome(MemoryTransport, name) is None, "the case fails without the defect, too"
    error = await outcome(broken, name)
    assert error is not None, f"{name} passes over a transport that breaks it"


async def test_an_assertion_of_the_kit_is_told_with_its_values_and_place():
    for broken, name in (
        (with_links(send=swap), "B_order_is_kept"),
        (ParsesToSomethingLonger, "A_addresses_round_trip"),
    ):
        said = str(await outcome(broken, name))
        seen = said.partition(" Seen: ")[2]
        assert re.fullmatch(rf"not .+ == .+, where .+ \({name[2:]}, line \d+\)", seen), said


def test_each_group_has_a_broken_transport():
    groups = {case.name[0] for case in cases_for(env_of(MemoryTransport))}
    assert {name[0] for name, _ in BROKEN} == groups == set("ABCDEFGHI")


class Opens(MemoryTransport):
    """Opens a descriptor with each connection."""

    opened: ClassVar[list[int]] = []

    async def connect(self, endpoint):
        self.opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        return await super().connect(endpoint)


@pytest.fixture
def opened():
    yield Opens.opened
    while Opens.opened:
        with contextlib.suppress(OSError):
            os.close(Opens.opened.pop())


async def test_a_descriptor_that_stays_open_is_found(opened, monkeypatch):
    monkeypatch.setattr(_frame, "_CLOSING_SECONDS", 0.05)
    error = await outcome(Opens, "B_order_is_kept")
    assert isinstance(error, AssertionError) and f"left open: {{'{opened[-1]}: {os.devnull}'" in str(error)


async def test_one_that_a_thread_closes_a_moment_later_is_not(opened, monkeypatch):
    looks, list_descriptors = threading.Semaphore(0), _frame._descriptors

    def look():
        found = list_descriptors()
        looks.release()
        return found

    def close_late():
        looks.acquire()  # before the case
        assert looks.acquire(timeout=30)  # after it
        while opened:
            os.close(opened.pop())

    monkeypatch.setattr(_frame, "_descriptors", look)
    closer = threading.Thread(target=close_late)
    closer.start()
    assert await outcome(Opens, "B_order_is_kept") is None
    closer.join()
