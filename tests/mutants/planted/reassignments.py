"""Errors in moving partitions to other nodes, and in electing when nobody certainly has everything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import structs

from insync.replication.core.control import controller, elections, rebalance, transitions
from insync.replication.core.control.controller import Controller
from insync.replication.core.control.elections import Elect, Situation
from insync.replication.core.control.records import PartitionRecord, Versioned
from insync.replication.core.errors import ErrorCode
from insync.replication.core.partition import effects as fx
from insync.replication.core.partition.leader import LeaderRole
from insync.replication.core.partition.log_state import LogState
from insync.replication.core.partition.replica import Replica
from insync.replication.core.types import NO_LEADER

from ..catalogue import Patch, mutant
from .calls import telling


@mutant("Z31", "elect one of the last known eligible replicas before all of them are back (KAFKA-19522)")
def _(patch: Patch) -> None:
    right = controller.decide

    def decide(situation: Situation, policy: elections.Policy) -> elections.Verdict:
        record = situation.record
        known = [node for node in record.last_known_elr if node in situation.live]
        if known and not record.isr and not record.elr:
            return Elect(known[0])
        return right(situation, policy)

    patch.setattr(controller, "decide", decide)


@mutant("K60", "elect the first of the last known eligible replicas, not the most complete one")
def _(patch: Patch) -> None:
    patch.setattr(Situation, "most_complete", lambda self, nodes: next(iter(nodes)))


@mutant("K61", "compare logs by their length alone")
def _(patch: Patch) -> None:
    patch.setattr(elections.LogInfo, "completeness", property(lambda self: (0, self.log_end_offset)))


@mutant("K62", "report the epoch entered as the epoch of the last record")
def _(patch: Patch) -> None:
    patch.setattr(LogState, "last_epoch", property(lambda self: self.epochs.latest))


@mutant("K63", "believe a report of a log from an earlier epoch or an earlier process")
def _(patch: Patch) -> None:
    right = Controller._situation

    def situation(self: Controller, record: PartitionRecord) -> Situation:
        found = right(self, record)
        return structs.replace(found, logs=self._logs.get(record.id, {}))

    patch.setattr(Controller, "_situation", situation)


def _back(situation: Situation) -> list[int]:
    """The last known eligible replicas, if nobody else counts and all of them live."""
    record = situation.record
    known = [node for node in record.replicas if node in record.last_known_elr]
    all_live = all(node in situation.live for node in known)
    return known if all_live and not record.isr and not record.elr else []


@mutant(
    "K280", "compare the logs of the last known eligible replicas, and ignore other living ones (KIP-966)"
)
def _(patch: Patch) -> None:
    right = controller.decide

    def decide(situation: Situation, policy: elections.Policy) -> elections.Verdict:
        known = _back(situation)
        if not known:
            return right(situation, policy)
        if all(node in situation.logs for node in known):
            return Elect(situation.most_complete(known))
        verdict = policy(situation) if situation.asked else elections.Wait()
        return elections.AskLogs(tuple(known)) if isinstance(verdict, elections.Wait) else verdict

    patch.setattr(controller, "decide", decide)


@mutant("K281", "elect the only last known eligible replica without asking anybody (KIP-966)")
def _(patch: Patch) -> None:
    right = controller.decide

    def decide(situation: Situation, policy: elections.Policy) -> elections.Verdict:
        known = _back(situation)
        return Elect(known[0]) if len(known) == 1 else right(situation, policy)

    patch.setattr(controller, "decide", decide)


@mutant("K303", "elect without a living replica that does not answer, once the last known eligible ones have")
def _(patch: Patch) -> None:
    right = controller.decide

    def decide(situation: Situation, policy: elections.Policy) -> elections.Verdict:
        known = _back(situation)
        if known and situation.asked and all(node in situation.logs for node in known):
            return Elect(
                situation.most_complete([each for each in situation.living if each in situation.logs])
            )
        return right(situation, policy)

    patch.setattr(controller, "decide", decide)


@mutant(
    "K304", "elect without waiting for a replica that is not alive yet, once all others have told (KIP-966)"
)
def _(patch: Patch) -> None:
    right = controller.decide

    def decide(situation: Situation, policy: elections.Policy) -> elections.Verdict:
        living = situation.living
        if not _back(situation):
            return right(situation, policy)
        if all(node in situation.logs for node in living):
            return Elect(situation.most_complete(living))
        verdict = right(situation, policy)
        return elections.AskLogs(tuple(living)) if isinstance(verdict, elections.AskLogs) else verdict

    patch.setattr(controller, "decide", decide)


@mutant("K293", "elect the log of the latest epoch, though it parts from those of all that were in sync")
def _(patch: Patch) -> None:
    patch.setattr(elections.LogInfo, "extends", lambda self, other: True)


@mutant("K285", "count a round of questions as over for a replica that came after it")
def _(patch: Patch) -> None:
    right = Controller._situation

    def situation(self: Controller, record: PartitionRecord) -> Situation:
        over = self._asked.get(record.id)
        asked = over is not None and (over.topic_id, over.leader_epoch) == (
            record.topic_id,
            record.leader_epoch,
        )
        rounds = over.rounds if over is not None and asked else 0
        return structs.replace(right(self, record), asked=asked, rounds=rounds)

    patch.setattr(Controller, "_situation", situation)


@mutant("K282", "let a process come in although its log has a later leader epoch than the store")
def _(patch: Patch) -> None:
    patch.setattr(transitions, "_above_log", lambda record, last_epoch, process: None)


@mutant("K283", "raise the leader epoch to that of a log, not above it")
def _(patch: Patch) -> None:
    def above_log(record: PartitionRecord, last_epoch: int, process: str) -> int | None:
        return last_epoch if last_epoch > record.leader_epoch else None

    patch.setattr(transitions, "_above_log", above_log)


@mutant("K284", "begin an unclean election's epoch next to the last one that the store knows")
def _(patch: Patch) -> None:
    right = transitions._next

    def after(record: PartitionRecord, **change: Any) -> PartitionRecord:
        if change.get("unclean"):
            change["begins"] = record.leader_epoch + 1
        return right(record, **change)

    patch.setattr(transitions, "_next", after)


@mutant("K286", "skip as many epochs whichever process elects uncleanly")
def _(patch: Patch) -> None:
    patch.setattr(transitions, "above", lambda epoch, process: epoch + transitions.EPOCHS_SKIPPED)


@mutant("Z42", "remove a replica and keep the leader epoch, so that its acknowledgements still count")
def _(patch: Patch) -> None:
    right = transitions._next

    def after(record: PartitionRecord, **change: Any) -> PartitionRecord:
        return right(record, **{**change, "new_epoch": False})

    patch.setattr(transitions, "_next", after)


def _finish(patch: Patch, may_finish: Any) -> None:
    right = transitions.finish_reassignment

    def finish(record: PartitionRecord) -> PartitionRecord | None:
        done = right(record)
        in_sync = [node for node in record.target if node in record.isr]
        if done is not None or not record.reassigning or record.leader == NO_LEADER:
            return done
        if not in_sync or not may_finish(record, in_sync):
            return None
        moved = structs.replace(record, replicas=record.target, adding=(), removing=())
        leader = record.leader if record.leader in in_sync else in_sync[0]
        return transitions._next(
            record, isr=in_sync, leader=leader, to=moved, new_epoch=bool(record.removing)
        )

    patch.setattr(transitions, "finish_reassignment", finish)


@mutant("K64", "finish a reassignment when one of the new replicas is in sync (KIP-455)")
def _(patch: Patch) -> None:
    _finish(patch, lambda record, in_sync: any(node in record.adding for node in in_sync))


@mutant("K65", "cancel a reassignment although too few of the old replicas are in sync")
def _(patch: Patch) -> None:
    def may_finish(record: PartitionRecord, in_sync: Sequence[int]) -> bool:
        return not any(node in record.adding for node in record.target)

    _finish(patch, may_finish)


@mutant("K65b", "end a move with an ISR that is sufficient only for the former replicas")
def _(patch: Patch) -> None:
    def may_finish(record: PartitionRecord, in_sync: Sequence[int]) -> bool:
        return set(record.adding) & set(record.target) <= set(in_sync) and len(in_sync) >= record.min_isr

    _finish(patch, may_finish)


@mutant("K66", "remove replicas when a reassignment begins")
def _(patch: Patch) -> None:
    right = transitions.reassign

    def reassign(record: PartitionRecord, target: Sequence[int]) -> PartitionRecord | None:
        moving = right(record, target)
        if moving is None or not moving.removing or moving.leader in moving.removing:
            return moving
        kept = [node for node in moving.isr if node not in moving.removing]
        return structs.replace(moving, replicas=moving.target, isr=tuple(kept), elr=(), removing=())

    patch.setattr(transitions, "reassign", reassign)


@mutant("K67", "never finish a reassignment that a predecessor began")
def _(patch: Patch) -> None:
    right = Controller._next_record

    def next_record(self: Controller, partition: Any, record: PartitionRecord, live: Any) -> Any:
        found = right(self, partition, record, live)
        stranger = record.reassigning and record.controller_epoch < self._view.controller_epoch
        over = found is not None and record.reassigning and not found.reassigning
        return None if stranger and over else found

    patch.setattr(Controller, "_next_record", next_record)


@mutant("K68", "never meet the replicas that a reassignment adds")
def _(patch: Patch) -> None:
    patch.setattr(LeaderRole, "_meet_new_replicas", lambda self: None)


@mutant("Z20b", "delete a log by an old record, when the node is to have the partition again (KAFKA-9539)")
def _(patch: Patch) -> None:
    right = Replica._on_record

    def on_record(self: Replica, versioned: Versioned) -> None:
        if self.node_id not in versioned.record.replicas and self._open and not self.log.outstanding:
            self._leave_role(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self.parts.retire(self.partition, fx.Retire(leader_epoch=versioned.record.leader_epoch))
            return
        right(self, versioned)

    patch.setattr(Replica, "_on_record", on_record)


@mutant("K69", "keep the log of a partition that was moved away")
def _(patch: Patch) -> None:
    right = Replica._enter_waiting_epoch

    def enter(self: Replica) -> None:
        with telling(self, "retire", lambda retired: None):
            right(self)

    patch.setattr(Replica, "_enter_waiting_epoch", enter)


@mutant("K70", "give leadership to the preferred replica although it is not in sync")
def _(patch: Patch) -> None:
    right = transitions.prefer

    def prefer(record: PartitionRecord, live: Iterable[int]) -> PartitionRecord | None:
        preferred = record.replicas[0]
        if record.leader in (NO_LEADER, preferred) or preferred not in live:
            return right(record, set(live))
        return transitions._next(record, isr=(*record.isr, preferred), leader=preferred)

    patch.setattr(transitions, "prefer", prefer)


@mutant("K71", "correct imbalance where the preferred replica leads, and leave the other partitions alone")
def _(patch: Patch) -> None:
    right = rebalance.plan

    def plan(view: Any, imbalance_percentage: int) -> list[tuple[PartitionRecord, Versioned]]:
        return [each for each in right(view, imbalance_percentage) if each[1].record.leader == each[0].leader]

    patch.setattr(rebalance, "plan", plan)


@mutant("K72", "lower the minimum ISR while replicas are being added")
def _(patch: Patch) -> None:
    def min_isr(self: PartitionRecord) -> int:
        return 1 if self.adding else min(self.min_insync_replicas, len(self.replicas))

    patch.setattr(PartitionRecord, "min_isr", property(min_isr))
