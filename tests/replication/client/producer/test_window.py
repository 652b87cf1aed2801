"""The send window against a leader that follows KIP-98's rules, over a network that loses, repeats and delays."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from random import Random

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from insync.replication.client.producer._window import WINDOW, SendWindow


@attrs.define(eq=False)
class Sent:
    count: int = 1
    number: int = -1
    sequence: int = -1
    epoch: int = -1
    attempts: int = 0
    maybe_written: bool = False
    outcome: str = ""
    maybe_in_whole: bool = False
    records: list[int] = attrs.Factory(list)


@attrs.define
class Leader:
    """Keeps a log of records, and five batches in mind."""

    limit: int = 100
    """How many records it takes in one batch."""
    log: list[int] = attrs.Factory(list)
    epoch: int = -1
    next_sequence: int = -1
    known: deque[tuple[int, int]] = attrs.Factory(lambda: deque(maxlen=WINDOW))
    begins_at_zero: bool = False
    """As in a transaction that has its own epoch."""

    def append(self, batch: Sent, epoch: int, sequence: int) -> str:
        if batch.count > self.limit:
            # It looks at nothing else of it.
            return "too large"
        if epoch < self.epoch:
            return "fenced"
        if epoch == self.epoch and (sequence, batch.count) in self.known:
            return "ok"
        if epoch > self.epoch:
            # A leader that does not know the producer takes any sequence; of a known one an epoch begins at 0.
            if (self.epoch >= 0 or self.begins_at_zero) and sequence != 0:
                return "out of order"
        elif sequence != self.next_sequence:
            return "out of order"
        if epoch > self.epoch:
            self.epoch = epoch
            self.known.clear()
        self.known.append((sequence, batch.count))
        self.next_sequence = sequence + batch.count
        self.log += batch.records
        return "ok"


@attrs.define(eq=False)
class World:
    """One window and one leader; each step is one thing that a driver or a network does."""

    window: SendWindow[Sent] = attrs.Factory(SendWindow)
    leader: Leader = attrs.Factory(Leader)
    epoch: int = 0
    on_the_way: deque[tuple[Sent, int, int]] = attrs.Factory(deque)
    answers: deque[tuple[Sent, str]] = attrs.Factory(deque)
    zombies: list[tuple[Sent, int, int]] = attrs.Factory(list)
    batches: list[Sent] = attrs.Factory(list)
    now: float = 0.0
    pushed: int = 0

    def push(self, choice: int) -> None:
        count = 1 + choice % 4
        batch = Sent(count=count, records=list(range(self.pushed, self.pushed + count)))
        self.pushed += count
        self.window.push(batch)
        self.batches.append(batch)

    def send(self, _: int) -> None:
        window = self.window
        if not window.may_send("leader"):
            return
        if window.needs_epoch:
            assert not self.on_the_way and not self.answers, "something of the last epoch is still in flight"
            self.epoch += 1
            for batch in window.begin_epoch(self.epoch, begins_at_zero=self.leader.begins_at_zero):
                batch.epoch = self.epoch
                window.stamped(batch)
        first = window.waiting[0]
        if first.sequence < 0:
            first.epoch = self.epoch
            window.stamped(first)
        batch = window.launch("leader")
        assert batch is first
        spread = batch.number - window.in_flight[0].number
        assert spread < (WINDOW if window.established or self.leader.begins_at_zero else 1)
        self.on_the_way.append((batch, batch.epoch, batch.sequence))

    def arrive(self, _: int) -> None:
        """The next request is appended, and the answer sets off."""
        if self.on_the_way:
            request = self.on_the_way.popleft()
            self.answers.append((request[0], self.leader.append(*request)))

    def answer(self, _: int) -> None:
        if not self.answers:
            return
        batch, said = self.answers.popleft()
        assert said != "fenced", "a batch arrived behind one of the next epoch"
        if said == "ok":
            self.window.acknowledged(batch)
            batch.outcome = batch.outcome or "acknowledged"
        elif said == "too large":
            self._too_large(batch)
        elif self.window.follows_a_failure(batch):
            self._fail(batch, written=False)
        elif batch.maybe_in_whole:
            self._give_up(batch)
        else:
            raise AssertionError(f"{batch} is out of order for no reason of its own")
        self._repeat()

    def _too_large(self, batch: Sent) -> None:
        if batch.outcome or batch.count == 1:
            self._give_up(batch)
            return
        half = (batch.count + 1) // 2
        parts = [
            Sent(len(records), epoch=batch.epoch, records=records)
            for records in (batch.records[:half], batch.records[half:])
        ]
        self.window.divided(batch, parts)
        at = self.batches.index(batch)
        self.batches[at : at + 1] = parts

    def _give_up(self, batch: Sent) -> None:
        self.window.given_up(batch)
        batch.outcome = batch.outcome or ("unknown" if batch.maybe_written else "absent")

    def limit(self, choice: int) -> None:
        """The topic's limit is set; at last it takes any batch again."""
        self.leader.limit = (1, 2, 3, 100)[choice % 4]

    def refuse(self, choice: int) -> None:
        """The leader takes no more for a while (not enough replicas), or never this one (too large)."""
        if not self.on_the_way:
            return
        batch, _, _ = self.on_the_way.popleft()
        if choice % 2:
            self._fail(batch, written=False)
        else:
            self._give_up(batch)
        self._repeat()

    def disconnect(self, choice: int) -> None:
        """All in flight fails; some of what was on its way has been or will be appended."""
        lost = list(self.on_the_way)
        for request in lost[: choice % (len(lost) + 1)]:
            self.leader.append(*request)
        if choice % 2:
            self.zombies += lost
        for batch in [*(batch for batch, _ in self.answers), *(batch for batch, _, _ in lost)]:
            self._fail(batch, written=True)
        self.on_the_way.clear()
        self.answers.clear()
        self._repeat()

    def wake_the_dead(self, choice: int) -> None:
        """A request of a broken connection is read only now."""
        if self.zombies:
            self.leader.append(*self.zombies.pop(choice % len(self.zombies)))

    def expire(self, choice: int) -> None:
        """`delivery_timeout_ms` is over for a batch; the oldest ones go first."""
        batch = next((each for each in self.batches if not each.outcome), None)
        if batch is None:
            return
        flying = batch in self.window.in_flight
        assert self.window.withdraw(batch) is not flying
        batch.outcome = "unknown" if flying or batch.maybe_written else "absent"

    def _fail(self, batch: Sent, *, written: bool) -> None:
        if batch.outcome:
            self.window.given_up(batch, written=written)
        else:
            self.window.retriable(batch, written=written)

    def _repeat(self) -> None:
        if self.window.round_is_over:
            self.window.repeat(self.now)
            numbers = [batch.number for batch in self.window.waiting]
            assert numbers == sorted(numbers)

    def settle(self) -> None:
        """No more faults: everything that waits gets through."""
        for _ in range(20 * self.pushed + 20):
            for _ in range(WINDOW):
                self.send(0)
            while self.on_the_way:
                self.arrive(0)
            while self.answers:
                self.answer(0)
        assert not self.window.waiting and not self.window.in_flight and not self.window.failed


STEPS = ["push", "send", "arrive", "answer", "refuse", "disconnect", "wake_the_dead", "expire", "limit"]
steps = st.lists(
    st.tuples(st.sampled_from([*["push", "send", "arrive", "answer"] * 3, *STEPS]), st.integers(0, 11)),
    max_size=120,
)


def play(done: Iterable[tuple[str, int]], *, begins_at_zero: bool = False) -> None:
    world = World()
    if begins_at_zero:
        world.leader.begins_at_zero = True
        world.window.begin_epoch(world.epoch, begins_at_zero=True)
    for step, choice in done:
        getattr(world, step)(choice)
    world.settle()
    log = world.leader.log
    assert log == sorted(set(log)), "in order, none twice"
    for batch in world.batches:
        if batch.outcome == "acknowledged":
            assert set(batch.records) <= set(log)
        elif batch.outcome == "absent":
            assert not set(batch.records) & set(log)
        else:
            assert batch.outcome == "unknown"


@settings(max_examples=200, deadline=None)
@given(steps)
def test_each_batch_once_and_in_order_whatever_the_network_does(done):
    play(done)


@settings(max_examples=200, deadline=None)
@given(steps)
def test_the_same_in_a_transaction(done):
    play(done, begins_at_zero=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "begins_at_zero"), [*((seed, False) for seed in range(4)), (4, True), (5, True)]
)
def test_the_same_for_long(seed, begins_at_zero):
    random = Random(seed)
    for _ in range(300):
        often = ["push", "send", "send", "arrive", "answer"] * random.randrange(1, 8)
        choices = often + random.sample(STEPS, random.randrange(1, len(STEPS)))
        done = [(random.choice(choices), random.randrange(12)) for _ in range(200)]
        play(done, begins_at_zero=begins_at_zero)


def launched(count: int, **options: int) -> SendWindow[Sent]:
    window: SendWindow[Sent] = SendWindow(**options)  # type: ignore[arg-type]
    for _ in range(count):
        window.push(Sent())
    while window.may_send("a"):
        window.stamped(window.waiting[0])
        window.launch("a")
    return window


def test_a_leader_that_does_not_know_the_producer_gets_one_batch():
    window = launched(3)
    assert len(window.in_flight) == 1
    window.acknowledged(window.in_flight[0])
    assert window.may_send("a")


def test_where_epochs_begin_at_zero_the_window_is_open_at_once():
    window: SendWindow[Sent] = SendWindow()
    window.begin_epoch("transaction", begins_at_zero=True)
    for _ in range(WINDOW + 1):
        window.push(Sent())
    while window.may_send("a"):
        window.stamped(window.waiting[0])
        window.launch("a")
    assert len(window.in_flight) == WINDOW


def test_the_window_counts_from_the_oldest_past_acknowledged_ones():
    window = launched(1)
    window.acknowledged(window.in_flight[0])
    for _ in range(8):
        window.push(Sent())
    while window.may_send("a"):
        window.stamped(window.waiting[0])
        window.launch("a")
    assert [batch.number for batch in window.in_flight] == [1, 2, 3, 4, 5]
    window.acknowledged(window.in_flight[3])
    assert not window.may_send("a"), "a leader would not remember the oldest any more"
    window.acknowledged(window.in_flight[0])
    assert window.may_send("a")
    assert not window.may_send("b"), "two leaders would not see one order"


def test_a_batch_must_wait_once_the_window_is_full():
    window = launched(1)
    window.acknowledged(window.in_flight[0])
    pushed = [Sent() for _ in range(7)]
    for batch in pushed:
        window.push(batch)
    assert [window.must_wait(batch) for batch in pushed] == [False] * 5 + [True] * 2
    window.stamped(pushed[0])
    window.launch("a")
    window.retriable(pushed[0], written=False)
    assert window.must_wait(pushed[1])


def test_a_pause_is_for_the_leader_that_failed():
    window = launched(1)
    window.retriable(window.in_flight[0], written=False)
    window.repeat(7.0)
    assert (window.paused_until("a"), window.paused_until("b")) == (7.0, -1.0)
    assert window.retries == 1
    window.launch("a")
    window.acknowledged(window.in_flight[0])
    assert window.retries == 0


def test_a_batch_that_nobody_waits_for_takes_its_pause_with_it():
    window = launched(2)
    window.retriable(window.in_flight[0], written=False)
    window.repeat(7.0)
    assert window.withdraw(window.waiting[0])
    assert window.paused_until("a") == -1.0
    assert window.needs_epoch


def test_an_epoch_does_not_begin_while_something_is_in_flight():
    window = launched(1)
    with pytest.raises(AssertionError, match="in flight"):
        window.begin_epoch("next")


def test_without_sequences_nothing_waits_to_be_established():
    window: SendWindow[Sent] = SendWindow(limit=2, sequenced=False)
    for _ in range(3):
        window.push(Sent())
    while window.may_send("a"):
        window.launch("a")
    assert len(window.in_flight) == 2


def test_a_gap_ends_with_its_epoch():
    """What follows needs no other epoch on account of a batch that the last one has lost."""
    window = launched(1)
    window.given_up(window.in_flight[0])
    window.push(Sent())
    assert window.needs_epoch
    for batch in window.begin_epoch("next"):
        window.stamped(batch)
    assert not window.gaps and not window.gap_confirmed
    window.push(Sent())
    assert not window.needs_epoch


def test_what_is_accepted_behind_a_gap_proves_that_there_is_none():
    """The batch that was given up is in the log: nothing that follows needs another epoch."""
    window = launched(1)
    window.acknowledged(window.in_flight[0])
    for _ in range(3):
        window.push(Sent())
    for _ in range(2):
        window.stamped(window.waiting[0])
        window.launch("a")
    window.given_up(window.in_flight[0], written=True)
    assert window.gaps
    window.acknowledged(window.in_flight[0])
    assert not window.gaps and not window.needs_epoch
