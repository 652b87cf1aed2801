"""A member of a group, as its client lives it; the coordinator's part is played by hand."""

from __future__ import annotations

from typing import Any

from insync.replication.core.client import membership_events as me
from insync.replication.core.client.membership import Membership, MembershipSettings
from insync.replication.core.errors import ErrorCode
from insync.replication.core.groups.records import TopicPartition
from insync.replication.core.messages import groups as gm

T0, T1, T2 = (TopicPartition("id", number) for number in range(3))


class Client:
    """`sent`: requests that have no answer yet, by kind; `calls`: callbacks under way."""

    def __init__(self, **settings: Any) -> None:
        self.now = 100.0
        self.machine = Membership(MembershipSettings(group="g", member_id="m", **settings), self.now)
        self.effects: list[me.Effect] = []
        self.tell(me.Subscribed(topics=("t",)))
        self.tell(me.TopicsKnown(names={"id": "t"}))

    def tell(self, event: me.Event) -> list[me.Effect]:
        self.effects = self.machine.step(event, self.now)
        return self.effects

    def only(self, kind: type) -> Any:
        [found] = [each for each in self.effects if isinstance(each, kind)]
        return found

    def has(self, kind: type) -> bool:
        return any(isinstance(each, kind) for each in self.effects)

    def message(self, kind: type) -> Any:
        [found] = [
            each for each in self.effects if isinstance(each, me.Send) and isinstance(each.message, kind)
        ]
        return found

    @property
    def beat(self) -> me.Send:
        return self.message(gm.ConsumerGroupHeartbeatRequest)

    def find(self) -> None:
        self.tell(me.CoordinatorFound(token=self.only(me.FindCoordinator).token, leader_epoch=4))

    def answer_beat(self, sent: me.Send, *partitions: int, epoch: int = 1, **changes: Any) -> None:
        assignment = [gm.TopicPartitionList(topic_id="id", partitions=list(partitions))]
        said = {
            "member_epoch": epoch,
            "heartbeat_interval_ms": 5000,
            "session_timeout_ms": 45000,
            "assignment": assignment,
        }
        self.tell(me.Answered(token=sent.token, reply=gm.ConsumerGroupHeartbeatResponse(**said | changes)))

    def answer_offsets(self, **offsets: int) -> None:
        sent = self.message(gm.GroupOffsetsRequest)
        told = [
            gm.CommittedOffset(
                topic=each.topic,
                partition=each.partition,
                offset=offsets.get(f"{each.topic}{each.partition}", -1),
            )
            for each in sent.message.partitions
        ]
        self.tell(me.Answered(token=sent.token, reply=gm.GroupOffsetsResponse(offsets=told)))

    def poll(self) -> list[me.Effect]:
        return self.tell(me.PollBegan())

    def committed(self, sent: me.Send, error: int = 0) -> list[me.Effect]:
        return self.tell(me.Answered(token=sent.token, reply=gm.CommitGroupOffsetsResponse(error=error)))


def joined(**settings: Any) -> tuple[Client, me.Send]:
    """A member that is handed records of two partitions, and its parked heartbeat."""
    client = Client(**settings)
    client.poll()
    client.find()
    client.answer_beat(client.beat, 0, 1)
    parked = client.beat
    client.answer_offsets(t0=7)
    assert client.only(me.CallBack).kind is me.CallbackKind.ASSIGNED
    client.tell(me.CallbackDone())
    assert client.effects == [me.Serve(partition=T0, offset=7), me.Serve(partition=T1, offset=None)]
    client.tell(me.PollEnded())
    return client, parked


def test_it_joins_when_it_is_polled() -> None:
    client = Client()
    assert client.effects == []
    client.poll()
    client.find()
    join = client.beat
    assert join.leader_epoch == 4
    assert (join.message.member_epoch, join.message.owned, join.message.topics) == (0, [], ["t"])
    client.answer_beat(join, 0)
    parked = client.beat.message
    assert (parked.member_epoch, parked.owned, parked.max_wait_ms) == (1, None, 5000)
    assert parked.sequence > join.message.sequence


def test_nothing_is_called_back_outside_of_a_poll() -> None:
    client = Client()
    client.poll()
    client.find()
    beat = client.beat
    client.tell(me.PollEnded())
    client.answer_beat(beat, 0)
    client.answer_offsets()
    assert client.effects == []
    client.poll()
    assert client.only(me.CallBack).partitions == {T0}


def test_a_revocation_goes_step_by_step() -> None:
    client, parked = joined()
    client.tell(me.PollEnded(handed={T0: 10, T1: 3}))
    # 1. Nothing is handed out any more, at once.
    client.answer_beat(parked, 0, epoch=1)
    assert client.only(me.Withhold).partitions == {T1}
    assert client.beat.message.owned is None, "until it has let go it owns all"
    # 2. What was handed out is committed, when the caller comes back and so is done with it.
    client.poll()
    sent = client.message(gm.CommitGroupOffsetsRequest)
    assert [(each.partition, each.offset) for each in sent.message.offsets] == [(1, 3)]
    assert not client.has(me.CallBack)
    # 3. The callback.
    client.committed(sent)
    assert client.only(me.CallBack) == me.CallBack(kind=me.CallbackKind.REVOKED, partitions=frozenset({T1}))
    # 4. Only then the coordinator is told.
    client.tell(me.CallbackDone())
    assert client.beat.message.owned == [gm.TopicPartitionList(topic_id="id", partitions=[0])]


def test_a_revocation_waits_no_longer_than_a_request_for_its_commit() -> None:
    client, parked = joined()
    client.tell(me.PollEnded(handed={T1: 3}))
    client.answer_beat(parked, 0)
    client.poll()
    client.now += 4.5
    client.tell(me.Tick())
    assert not client.has(me.CallBack)
    client.now += 0.5
    client.tell(me.Tick())
    assert client.only(me.CallBack).kind is me.CallbackKind.REVOKED


def test_what_the_caller_has_not_heard_of_is_let_go_silently() -> None:
    client = Client()
    client.poll()
    client.find()
    client.answer_beat(client.beat, 0, 1)
    client.answer_beat(client.beat, 0)
    assert client.beat.message.owned == [gm.TopicPartitionList(topic_id="id", partitions=[0])]
    assert not client.has(me.Withhold) and not client.has(me.CallBack)


def test_what_is_taken_while_it_is_announced_is_called_back_again() -> None:
    client = Client()
    client.poll()
    client.find()
    client.answer_beat(client.beat, 0, 1)
    parked = client.beat
    client.answer_offsets()
    client.answer_beat(parked, 0)
    client.tell(me.CallbackDone())
    assert [each for each in client.effects if isinstance(each, me.Serve)] == [
        me.Serve(partition=T0, offset=None)
    ]
    assert client.only(me.CallBack) == me.CallBack(kind=me.CallbackKind.REVOKED, partitions=frozenset({T1}))


def test_given_again_it_starts_at_what_is_committed() -> None:
    client, parked = joined(enable_auto_commit=False)
    client.tell(me.PollEnded(handed={T1: 30}))
    client.answer_beat(parked, 0)
    client.poll()
    client.tell(me.CallbackDone())
    client.answer_beat(client.beat, 0, 1, epoch=2)
    client.answer_offsets(t1=12)
    client.tell(me.CallbackDone())
    assert client.effects == [me.Serve(partition=T1, offset=12)]


def test_a_position_that_was_asked_for_an_earlier_time_is_not_used() -> None:
    client = Client()
    client.poll()
    client.find()
    client.answer_beat(client.beat, 0)
    asked = client.message(gm.GroupOffsetsRequest)
    client.tell(me.Subscribed(topics=("t", "u")))
    client.answer_beat(client.beat)
    client.answer_beat(client.beat, 0, epoch=2)
    told = [gm.CommittedOffset(topic="t", partition=0, offset=3)]
    client.tell(me.Answered(token=asked.token, reply=gm.GroupOffsetsResponse(offsets=told)))
    client.answer_offsets(t0=9)
    client.tell(me.CallbackDone())
    assert client.effects == [me.Serve(partition=T0, offset=9)]


def test_the_first_offset_is_a_committed_one() -> None:
    """Whoever has committed nothing starts where its settings say, which may be the end."""
    client = Client()
    client.poll()
    client.find()
    client.answer_beat(client.beat, 0, 1)
    client.answer_offsets(t0=0)
    client.tell(me.CallbackDone())
    assert client.effects == [me.Serve(partition=T0, offset=0), me.Serve(partition=T1, offset=None)]


def test_positions_that_are_not_known_yet_are_asked_for_again() -> None:
    client = Client()
    client.poll()
    client.find()
    client.answer_beat(client.beat, 0, 1)
    sent = client.message(gm.GroupOffsetsRequest)
    assert sent.message.require_stable
    told = [
        gm.CommittedOffset(topic="t", partition=0, error=ErrorCode.UNSTABLE_OFFSET_COMMIT),
        gm.CommittedOffset(topic="t", partition=1, offset=4),
    ]
    client.tell(me.Answered(token=sent.token, reply=gm.GroupOffsetsResponse(offsets=told)))
    assert client.only(me.CallBack).partitions == {T1}
    client.now += 0.1
    client.tell(me.Tick())
    again = client.message(gm.GroupOffsetsRequest)
    assert [each.partition for each in again.message.partitions] == [0]
    client.tell(
        me.Answered(token=again.token, reply=gm.GroupOffsetsResponse(error=ErrorCode.STALE_MEMBER_EPOCH))
    )
    client.now += 0.1
    client.tell(me.Tick())
    assert client.message(gm.GroupOffsetsRequest)


def test_a_fenced_member_says_nothing_until_its_caller_knows() -> None:
    client, parked = joined()
    client.answer_beat(parked, error=ErrorCode.FENCED_MEMBER_EPOCH)
    assert client.only(me.Withhold).partitions == {T0, T1}
    assert not client.has(me.Send)
    client.poll()
    assert client.only(me.CallBack) == me.CallBack(kind=me.CallbackKind.LOST, partitions=frozenset({T0, T1}))
    assert not client.has(me.Send), "nothing is committed of what is lost"
    client.tell(me.CallbackDone())
    assert (client.beat.message.member_epoch, client.beat.message.member_id) == (0, "m")


def test_the_lease_counts_from_the_sending() -> None:
    client = Client()
    client.poll()
    client.find()
    join = client.beat
    client.now += 4
    client.answer_beat(join, 0)
    client.now = 100 + 0.95 * 45
    assert client.machine.deadline is not None and client.machine.deadline <= client.now
    client.answer_offsets()
    assert client.machine.epoch == 0 and not client.machine.held.all


def test_an_answer_that_comes_after_the_lease_renews_nothing() -> None:
    client, parked = joined()
    client.now += 43
    client.answer_beat(parked, 0, 1)
    assert client.only(me.Withhold).partitions == {T0, T1}
    assert client.machine.epoch == 0


def test_auto_commit_takes_what_earlier_polls_returned() -> None:
    client, _ = joined(auto_commit_interval=1.0)
    client.now += 1
    client.poll()
    assert not client.has(me.Send)
    client.tell(me.PollEnded(handed={T0: 20}))
    assert not client.has(me.Send)
    client.now += 1
    client.poll()
    sent = client.message(gm.CommitGroupOffsetsRequest)
    assert [(each.topic, each.partition, each.offset, each.topic_id) for each in sent.message.offsets] == [
        ("t", 0, 20, "id")
    ]
    assert sent.message.epoch == 1
    client.committed(sent)
    client.now += 1
    client.poll()
    assert not client.has(me.Send)


def commit(client: Client, number: int = 1, **offsets: int) -> list[me.Effect]:
    places = {"t0": T0, "t1": T1, "t2": T2}
    asked = {places[name]: offset for name, offset in offsets.items()}
    return client.tell(me.CommitAsked(commit_id=number, offsets=asked, deadline=client.now + 3))


def test_commits_go_one_by_one_and_in_order() -> None:
    client, _ = joined()
    commit(client, 1, t0=5)
    first = client.message(gm.CommitGroupOffsetsRequest)
    assert commit(client, 2, t0=6) == []
    client.committed(first, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert not client.has(me.Send)
    client.now += 0.1
    client.tell(me.Tick())
    again = client.message(gm.CommitGroupOffsetsRequest)
    assert again.message.offsets[0].offset == 5
    client.committed(again)
    assert client.only(me.CommitDone) == me.CommitDone(commit_id=1, error=0)
    second = client.message(gm.CommitGroupOffsetsRequest)
    client.committed(second, ErrorCode.STALE_MEMBER_EPOCH)
    assert client.only(me.CommitDone).error == ErrorCode.STALE_MEMBER_EPOCH


def test_a_commit_that_was_sent_before_a_new_epoch_is_sent_with_it() -> None:
    client, parked = joined()
    commit(client, 1, t0=5)
    sent = client.message(gm.CommitGroupOffsetsRequest)
    client.answer_beat(parked, 0, 1, epoch=2)
    stale = gm.PartitionError(topic="t", partition=0, error=ErrorCode.STALE_MEMBER_EPOCH)
    client.tell(me.Answered(token=sent.token, reply=gm.CommitGroupOffsetsResponse(partitions=[stale])))
    client.now += 0.1
    client.tell(me.Tick())
    assert client.message(gm.CommitGroupOffsetsRequest).message.epoch == 2


def test_what_is_not_owned_is_not_committed() -> None:
    client, _ = joined()
    commit(client, 1, t2=5)
    done = client.only(me.CommitDone)
    assert "t-2" in done.message and not done.unknown and not client.has(me.Send)


def test_a_commit_ends_with_its_deadline() -> None:
    client, _ = joined()
    commit(client, 1, t0=5)
    client.now += 3
    client.tell(me.Tick())
    assert client.only(me.CommitDone).unknown


def test_commits_end_when_the_partitions_are_lost() -> None:
    client, parked = joined()
    commit(client, 1, t0=5)
    client.answer_beat(parked, error=ErrorCode.UNKNOWN_MEMBER_ID)
    assert client.only(me.CommitDone).unknown


def test_a_lost_answer_means_another_look_for_the_coordinator() -> None:
    client, parked = joined()
    client.tell(me.Lost(token=parked.token))
    assert not client.has(me.FindCoordinator)
    client.now += 0.1
    client.tell(me.Tick())
    looked = client.only(me.FindCoordinator)
    client.tell(me.Lost(token=looked.token))
    client.now += 0.1
    client.tell(me.Tick())
    client.find()
    said = client.beat.message
    assert said.member_epoch == 1 and said.owned == [gm.TopicPartitionList(topic_id="id", partitions=[0, 1])]


def test_another_coordinator_is_looked_for_when_this_one_says_so() -> None:
    for error in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
        client, parked = joined()
        client.answer_beat(parked, error=error)
        client.now += 0.1
        client.tell(me.Tick())
        assert client.only(me.FindCoordinator)
        client, _ = joined()
        commit(client, 1, t0=5)
        client.committed(client.message(gm.CommitGroupOffsetsRequest), error)
        client.now += 0.1
        client.tell(me.Tick())
        assert client.only(me.FindCoordinator)


def test_a_commit_that_is_under_way_goes_to_the_next_coordinator() -> None:
    """The one before may never answer it, and what comes from it says nothing any more."""
    client, parked = joined()
    commit(client, 1, t0=5)
    first = client.message(gm.CommitGroupOffsetsRequest)
    client.answer_beat(parked, error=ErrorCode.NOT_COORDINATOR)
    client.now += 0.1
    client.tell(me.Tick())
    client.find()
    again = client.message(gm.CommitGroupOffsetsRequest)
    assert again.message.offsets == first.message.offsets
    assert not client.committed(first, ErrorCode.UNKNOWN_MEMBER_ID)
    assert client.committed(again) == [me.CommitDone(commit_id=1, error=0)]


def test_a_loading_coordinator_is_asked_again() -> None:
    client, parked = joined()
    client.answer_beat(parked, error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    client.now += 0.1
    client.tell(me.Tick())
    assert client.beat.message.owned is not None


def test_a_refusal_for_good_ends_the_subscription() -> None:
    client, parked = joined()
    client.answer_beat(parked, error=ErrorCode.FENCED_INSTANCE_ID, message="taken")
    assert client.only(me.Failed) == me.Failed(error=ErrorCode.FENCED_INSTANCE_ID, message="taken")
    client.poll()
    client.tell(me.CallbackDone())
    assert not client.has(me.Send)


def test_who_takes_no_records_leaves() -> None:
    client, _ = joined(max_poll_interval=20.0)
    client.now += 20
    client.tell(me.Tick())
    assert client.beat.message.member_epoch == -1
    leave = client.beat
    client.tell(me.Answered(token=leave.token, reply=gm.ConsumerGroupHeartbeatResponse()))
    assert client.effects == []
    client.poll()
    assert client.only(me.CallBack).kind is me.CallbackKind.LOST
    client.tell(me.CallbackDone())
    assert client.beat.message.member_epoch == 0


def test_who_takes_no_records_does_not_come_back_by_itself_though_it_has_nothing_to_lose() -> None:
    client = Client(max_poll_interval=20.0)
    client.poll()
    client.find()
    client.answer_beat(client.beat)
    client.tell(me.PollEnded())
    client.now += 20
    client.tell(me.Tick())
    leave = client.beat
    assert leave.message.member_epoch == -1
    client.tell(me.Answered(token=leave.token, reply=gm.ConsumerGroupHeartbeatResponse()))
    assert client.effects == [] and client.machine.deadline is None
    client.poll()
    assert client.beat.message.member_epoch == 0


def test_closing_commits_calls_back_and_leaves() -> None:
    client, _ = joined(instance_id="i")
    client.tell(me.PollEnded(handed={T0: 9}))
    client.poll()
    client.tell(me.PollEnded())
    client.tell(me.Closed(deadline=client.now + 9))
    assert client.only(me.Withhold).partitions == {T0, T1}
    client.committed(client.message(gm.CommitGroupOffsetsRequest))
    assert client.only(me.CallBack).kind is me.CallbackKind.REVOKED
    client.tell(me.CallbackDone())
    leave = client.beat
    assert (leave.message.member_epoch, leave.message.instance_id) == (-2, "i")
    client.tell(me.Lost(token=leave.token))
    assert client.effects == [me.Ended()] and client.machine.deadline is None
    assert client.poll() == []


def test_closing_is_bounded_and_may_leave_the_membership_alone() -> None:
    client, _ = joined()
    client.tell(me.Closed(deadline=client.now + 1))
    client.now += 1
    client.tell(me.Tick())
    assert client.only(me.Ended)
    client, _ = joined()
    client.tell(me.Closed(deadline=client.now + 1, leave_group=False))
    client.tell(me.CallbackDone())
    assert client.only(me.Ended) and not client.has(me.Send)


def test_other_topics_are_told_at_once() -> None:
    client, _ = joined()
    client.tell(me.Subscribed(topics=("u", "t")))
    assert client.beat.message.topics == ["t", "u"]
    client.tell(me.Subscribed(topics=("t", "u")))
    assert client.effects == []


def test_a_late_answer_to_an_earlier_heartbeat_says_nothing() -> None:
    client, parked = joined()
    client.tell(me.Subscribed(topics=("u", "t")))
    client.answer_beat(parked, 0, epoch=9)
    assert client.machine.epoch == 1
    client.tell(me.Lost(token=parked.token))
    client.tell(me.CallbackDone())
    assert client.effects == []


def test_closing_does_not_take_back_what_the_caller_has_committed() -> None:
    client, _ = joined()
    client.poll()
    client.tell(me.PollEnded(handed={T0: 9}))
    client.poll()
    client.tell(me.PollEnded(handed={T0: 12}))
    client.tell(me.CommitAsked(commit_id=1, offsets={T0: 12}, deadline=client.now + 9))
    client.committed(client.message(gm.CommitGroupOffsetsRequest))
    client.tell(me.Closed(deadline=client.now + 9))
    # 9 is what the caller was done with as far as polls tell.
    assert not any(isinstance(each, me.Send) for each in client.effects)
