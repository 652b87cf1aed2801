"""Credit and the budget: what is held is bounded, and nobody waits for ever."""

import math

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from insync.transport._payload import bytes_payload
from insync.transport.connections.intake import Intake, ReceiveBudget, has_credit
from insync.transport.connections.session import Session
from insync.transport.errors import ProtocolError
from insync.transport.frames import FrameType, Limits, decode_frame, encode_header

WINDOW = 1000
LARGEST = 1500


class Side:
    """A session whose handler keeps all payloads, unanswered."""

    def __init__(self, *, dialer, credit=WINDOW, window=WINDOW):
        self.limits = Limits(max_payload_bytes=LARGEST, window_bytes=window)
        self.budget = ReceiveBudget(1 << 40)
        self.requests, self.ends = [], []
        self.session = Session(
            dialer=dialer,
            limits=self.limits,
            peer="peer",
            on_request=self.requests.append,
            budget=self.budget,
            credit=credit,
        )

    def ask(self, size):
        return self.session.request(
            1, b"", [bytes(size)], deadline=math.inf, now=0, max_response=0, on_done=self.ends.append
        )

    def send_to(self, other):
        while self.session.outbox:
            out = self.session.outbox.popleft()
            payload = bytes_payload(b"".join(out.parts))
            other.session.receive(decode_frame(memoryview(out.head), payload, self.limits), 0)


@settings(max_examples=200)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("ask"), st.integers(0, LARGEST)),
            st.tuples(st.sampled_from(["release", "reply", "cancel"]), st.integers(0, 30)),
            st.tuples(st.sampled_from(["there", "back"]), st.just(0)),
        ),
        max_size=60,
    )
)
def test_what_is_held_is_bounded_and_all_arrives_in_order_once_released(steps):
    one, other = Side(dialer=True), Side(dialer=False)
    asked, cancelled, released = [], set(), set()
    for what, value in steps:
        if what == "ask":
            asked.append((one.ask(value), value))
        elif what == "cancel" and asked:
            one.session.cancel(asked[value % len(asked)][0])
            cancelled.add(value % len(asked))
        elif what == "release" and other.requests:
            other.requests[value % len(other.requests)].payload.release()
            released.add(value % len(other.requests))
        elif what == "reply" and other.requests:
            request = other.requests[value % len(other.requests)]
            if request.corr in other.session.unanswered:
                other.session.reply(request, b"", ())
        elif what == "there":
            one.send_to(other)
        elif what == "back":
            other.send_to(one)
        held = sum(r.payload.nbytes for i, r in enumerate(other.requests) if i not in released)
        assert other.session.intake.held == other.budget.used == held <= WINDOW / 4 + LARGEST
    for _ in range(len(asked) + 1):  # each turn brings at least one further
        one.send_to(other)
        for request in other.requests:
            request.payload.release()
        other.send_to(one)
    expected = [size for index, (_, size) in enumerate(asked) if index not in cancelled]
    arrived = iter([request.payload.nbytes for request in other.requests])
    assert all(size in arrived for size in expected), "a subsequence, in order"
    assert other.session.intake.held == other.budget.used == 0


def test_a_peer_that_knows_no_credit_gets_none_and_is_read_no_further():
    one, other = Side(dialer=True, credit=None), Side(dialer=False, credit=None)
    for _ in range(5):
        one.ask(WINDOW)
    one.send_to(other)
    assert len(other.requests) == 5 and other.session.intake.is_congested
    for request in other.requests:
        request.payload.release()
    assert not other.session.intake.is_congested and not other.session.outbox


@pytest.mark.parametrize("credit", [None, WINDOW])
def test_credit_that_nobody_used_is_refused(credit):
    side = Side(dialer=True, credit=credit)
    frame = decode_frame(memoryview(encode_header(FrameType.CREDIT, 1)), bytes_payload(b""), side.limits)
    with pytest.raises(ProtocolError, match="credit for 1 bytes"):
        side.session.receive(frame, 0)


@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(1, 5000))
def test_who_holds_nothing_is_never_stuck(used, nbytes, window):
    assert has_credit(0, nbytes, window)
    # Less than the receiver owes before it returns credit never stops anything.
    if used * 4 < window:
        assert has_credit(used, nbytes, window)


def intake(budget):
    return Intake(
        budget, window=1 << 40, knows_credit=True, on_credit=lambda n: None, on_release=lambda: None
    )


async def test_room_is_given_in_turn():
    budget = ReceiveBudget(100)
    first, second, third = (intake(budget) for _ in range(3))
    assert first.admits(60)
    order = []

    async def come(who, nbytes, name):
        while not who.admits(nbytes):
            await who.wait()
        order.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(come, second, 70, "large")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(come, third, 10, "small")
        await trio.testing.wait_all_tasks_blocked()
        assert not order, "the small one waits behind the large one"
        first.arrived(bytes_payload(bytes(60))).release()
        await trio.testing.wait_all_tasks_blocked()
    assert order == ["large", "small"] and budget.used == 80


async def test_who_leaves_gives_up_turn_and_room():
    budget = ReceiveBudget(100)
    first, second, third = (intake(budget) for _ in range(3))
    assert first.admits(100) and not second.admits(1) and not third.admits(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(second.wait)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    second.end()
    first.end()
    assert budget.used == 0 and third.admits(100)


async def test_what_is_larger_than_the_budget_comes_alone():
    budget = ReceiveBudget(100)
    first, second = intake(budget), intake(budget)
    assert first.admits(5000) and not second.admits(1)
    first.arrived(bytes_payload(bytes(5000))).release()
    assert second.admits(1)


def test_a_budget_of_nothing_is_refused():
    with pytest.raises(ValueError, match="number above 0"):
        ReceiveBudget(0)
