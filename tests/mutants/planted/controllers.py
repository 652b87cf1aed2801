"""Errors in who is elected, and in how that is written."""

from __future__ import annotations

from typing import Any

import attrs
from msgspec import structs

from insync.replication.core.control import controller as ctl
from insync.replication.core.control import elections, transitions
from insync.replication.core.control.controller import Controller
from insync.replication.core.control.records import CONTROLLER_EPOCH_KEY, PartitionRecord, Versioned
from insync.replication.core.partition.replica import Replica

from ..catalogue import Patch, mutant


@mutant("Z29", "keep replicas eligible although the ISR is at its minimum (KIP-966)")
def _(patch: Patch) -> None:
    right = transitions._next

    def after(record: PartitionRecord, **change: Any) -> PartitionRecord:
        done = right(record, **change)
        kept = tuple(node for node in record.elr if node not in done.isr)
        return structs.replace(done, elr=done.elr or kept)

    patch.setattr(transitions, "_next", after)


@mutant("K1", "forget the eligible replicas under the minimum ISR (KIP-966)")
def _(patch: Patch) -> None:
    right = transitions._next
    patch.setattr(
        transitions,
        "_next",
        lambda record, **change: structs.replace(right(record, **change), elr=()),
    )


@mutant("Z30", "take a lossy restart for a lossless one (KAFKA-15586)")
def _(patch: Patch) -> None:
    def forget(
        record: PartitionRecord, node: int, *, has_nothing: bool = False, **of_log: Any
    ) -> PartitionRecord | None:
        return transitions.restarted(record, node, **of_log)

    patch.setattr(transitions, "forget", forget)


@mutant("Z18", "let a new process lead in the epoch of its predecessor")
def _(patch: Patch) -> None:
    patch.setattr(transitions, "restarted", lambda record, node, **of_log: None)


@mutant("Z19", "write without checking the controller epoch (KAFKA-6082)")
def _(patch: Patch) -> None:
    right = Controller._commit

    def commit(self: Controller, *puts: ctl.Put, reason: str) -> None:
        right(self, *puts, reason=reason)
        written = self._effects[-1]
        assert isinstance(written, ctl.Commit)
        checks = {key: version for key, version in written.checks.items() if key != CONTROLLER_EPOCH_KEY}
        self._effects[-1] = structs.replace(written, checks=checks)

    patch.setattr(Controller, "_commit", commit)


@mutant("Z19b", "write without checking the version (Fluss #2778)")
def _(patch: Patch) -> None:
    right = Controller._commit

    def commit(self: Controller, *puts: ctl.Put, reason: str) -> None:
        right(self, *puts, reason=reason)
        written = self._effects[-1]
        assert isinstance(written, ctl.Commit)
        checks = {key: version for key, version in written.checks.items() if "/partitions/" not in key}
        self._effects[-1] = structs.replace(written, checks=checks)

    patch.setattr(Controller, "_commit", commit)


@mutant("Z20", "apply an older record of the same leader epoch (KIP-570)")
def _(patch: Patch) -> None:
    right = Replica._on_record

    def on_record(self: Replica, versioned: Versioned) -> None:
        known = self.versioned
        if known is not None and known.record.leader_epoch == versioned.record.leader_epoch:
            self.install(versioned)
        right(self, versioned)

    patch.setattr(Replica, "_on_record", on_record)


@mutant("Z43", "assume that every node is alive after taking over as controller (KAFKA-3143)")
def _(patch: Patch) -> None:
    believed: dict[Controller, dict[int, int]] = {}
    right = Controller._elect_leaders
    run = Controller._run_for_office

    def run_for_office(self: Controller) -> None:
        believed[self] = dict.fromkeys(range(1, 9), 0)
        run(self)

    def elect(self: Controller) -> bool:
        missing = believed.get(self, {})
        for node in self._view.nodes:
            missing.pop(node, None)
        view = self._view
        trusted = {node: next(iter(view.nodes.values())) for node in missing}
        self._view = attrs.evolve(view, nodes={**view.nodes, **trusted})
        try:
            return right(self)
        finally:
            self._view = view

    patch.setattr(Controller, "_run_for_office", run_for_office)
    patch.setattr(Controller, "_elect_leaders", elect)


@mutant("Z51", "keep the old ISR in an unclean election (KIP-704)")
def _(patch: Patch) -> None:
    right = transitions._next

    def after(record: PartitionRecord, **change: Any) -> PartitionRecord:
        if change.get("unclean"):
            change["isr"] = (*record.isr, *change["isr"])
        return right(record, **change)

    patch.setattr(transitions, "_next", after)


@mutant("K13", "elect any live replica, whatever the policy says")
def _(patch: Patch) -> None:
    patch.setattr(Controller, "_unclean_policy", lambda self, partition: elections.ANY)


@mutant("K14", "take the controller's office only if nobody has ever held it")
def _(patch: Patch) -> None:
    right = Controller._run_for_office

    def run(self: Controller) -> None:
        if self._view.controller_epoch == 0:
            right(self)

    patch.setattr(Controller, "_run_for_office", run)


@mutant("K97", "leave a request without an answer when its time is over")
def _(patch: Patch) -> None:
    patch.setattr(Controller, "_on_admin_request_expired", lambda self, request_id: None)


@mutant("K98", "answer a request whose time is over, and grant it later")
def _(patch: Patch) -> None:
    right = Controller._on_admin_request_expired

    def expire(self: Controller, request_id: int) -> None:
        waiting, granting = self._admin_requests.copy(), self._granting
        right(self, request_id)
        self._admin_requests, self._granting = waiting, granting

    patch.setattr(Controller, "_on_admin_request_expired", expire)
