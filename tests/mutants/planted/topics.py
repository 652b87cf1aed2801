"""Errors in how topics that are in use are changed, deleted, and made anew under the same name."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from insync.replication.core.broker.membership import proposing
from insync.replication.core.control import admin_requests as admin_requests
from insync.replication.core.control import topic_changes, transitions
from insync.replication.core.control.controller import Controller
from insync.replication.core.control.records import PartitionRecord, TopicConfig, TopicRecord
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import AlterConfigRequest, DeleteTopicRequest
from insync.replication.core.partition import effects as fx
from insync.replication.core.partition import events as ev
from insync.replication.core.partition.leader import LeaderRole
from insync.replication.core.partition.replica import Replica
from insync.replication.core.store_transaction import Seen

from ..catalogue import Patch, mutant


@mutant("K80", "change the minimum ISR and leave the eligible replicas as they are (KIP-966)")
def _(patch: Patch) -> None:
    def set_min_insync(record: PartitionRecord, min_insync: int) -> PartitionRecord | None:
        if record.min_insync_replicas == min_insync:
            return None
        epoch = record.partition_epoch + 1
        return structs.replace(record, min_insync_replicas=min_insync, partition_epoch=epoch)

    patch.setattr(transitions, "set_min_insync", set_min_insync)


@mutant("K292", "forget the durability of a topic whose settings change")
def _(patch: Patch) -> None:
    right = topic_changes._configure

    def configure(topic: TopicRecord, request: AlterConfigRequest, *rest: Any) -> Any:
        changed = structs.replace(request, config={**request.config, "durability": "replicated"})
        return right(topic, changed, *rest)

    patch.setattr(topic_changes, "_configure", configure)


@mutant("K299", "acknowledge the records of a flushed topic before the device has them")
def _(patch: Patch) -> None:
    patch.setattr(TopicConfig, "flushes", property(lambda self: False))


@mutant("K81", "change the minimum ISR of the topic, but not of its partitions")
def _(patch: Patch) -> None:
    patch.setattr(transitions, "set_min_insync", lambda record, min_insync: None)


@mutant("K82", 'answer an unanswered batch with "unknown topic" because the topic was deleted')
def _(patch: Patch) -> None:
    right = Replica._on_topic_deleted

    def on_topic_deleted(self: Replica) -> None:
        if self._role is not None:
            self._role.leave(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            self._role = None
        right(self)

    patch.setattr(Replica, "_on_topic_deleted", on_topic_deleted)


@mutant("K83", "leave a controller's write with unknown outcome in transit")
def _(patch: Patch) -> None:
    right = Controller._commit

    def commit(self: Controller, *puts: Any, reason: str) -> None:
        self._unclear = False
        right(self, *puts, reason=reason)

    patch.setattr(Controller, "_commit", commit)


@mutant("K84", "store an ISR over a record of the same version, whatever its topic")
def _(patch: Patch) -> None:
    def is_same(stored: Seen, proposal: fx.ProposeIsr) -> bool:
        return stored.version == proposal.version

    patch.setattr(proposing, "_is_same", is_same)


@mutant("K85", "serve a follower of another topic of the same name (KIP-516)")
def _(patch: Patch) -> None:
    right = LeaderRole._fetch_error

    def fetch_error(self: LeaderRole, event: ev.Fetch) -> ErrorCode:
        return right(self, structs.replace(event, topic_id=""))

    patch.setattr(LeaderRole, "_fetch_error", fetch_error)


@mutant("K87", "keep the log of a topic that was deleted")
def _(patch: Patch) -> None:
    patch.setattr(Replica, "_maybe_retire", lambda self: None)


@mutant("K88", "delete a topic and leave its partitions")
def _(patch: Patch) -> None:
    right = topic_changes._delete
    patch.setattr(topic_changes, "_delete", lambda topic, view: right(topic, view)[:1])


@mutant("K89", "delete any topic with the name, although the request meant another")
def _(patch: Patch) -> None:
    right = admin_requests._change_topic

    def change(request: Any, known: Any) -> Any:
        if isinstance(request, DeleteTopicRequest):
            request = structs.replace(request, topic_id="")
        return right(request, known)

    patch.setattr(admin_requests, "_change_topic", change)
