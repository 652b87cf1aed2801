"""The names that a driver may use of the modules that decide: the machines, and the values that go in and come out.

Law 5 lets `node` import nothing else of them (import-linter, setup.cfg). A function that decides is not on this
list, unless it gives a whole transaction that the driver carries out as it is.
"""

from __future__ import annotations

from .broker.membership.clocks import ClockVerdict, WallClocks
from .broker.membership.damage import step_back
from .broker.membership.registration import (
    Entry,
    Evidence,
    Held,
    Holdings,
    Membership,
    MembershipError,
    NextProof,
    NodeIdTakenError,
    StorePutBackError,
    evict,
    was_put_back,
)
from .broker.membership.stalls import StallWatch
from .broker.membership.viewing import Spoilt, Viewing
from .control.controller import (
    AdminRequest,
    AdminRequestExpired,
    AskReplicas,
    Commit,
    CommitDone,
    Controller,
    ControllerEvent,
    LogsTold,
    ReadView,
    RebalanceDue,
    Reply,
    Response,
    SessionLost,
    ViewChanged,
)
from .control.elections import POLICIES, AskLogs, Elect, Policy, Situation, Verdict, Wait
from .recovery.adoption import AdoptedFolder, Adoption, AdoptionError, OpenTransaction
from .recovery.adoption import compacts as compacts_in_kafka
from .recovery.adoption import latest as latest_metadata
from .recovery.adoption import plan as plan_adoption
from .recovery.repair import FoundFolder, FoundLog, Repair, RepairError
from .recovery.repair import plan as plan_repair

__all__ = [
    "POLICIES",
    "AdminRequest",
    "AdminRequestExpired",
    "AdoptedFolder",
    "Adoption",
    "AdoptionError",
    "AskLogs",
    "AskReplicas",
    "ClockVerdict",
    "Commit",
    "CommitDone",
    "Controller",
    "ControllerEvent",
    "Elect",
    "Entry",
    "Evidence",
    "FoundFolder",
    "FoundLog",
    "Held",
    "Holdings",
    "LogsTold",
    "Membership",
    "MembershipError",
    "NextProof",
    "NodeIdTakenError",
    "OpenTransaction",
    "Policy",
    "ReadView",
    "RebalanceDue",
    "Repair",
    "RepairError",
    "Reply",
    "Response",
    "SessionLost",
    "Situation",
    "Spoilt",
    "StallWatch",
    "StorePutBackError",
    "Verdict",
    "ViewChanged",
    "Viewing",
    "Wait",
    "WallClocks",
    "compacts_in_kafka",
    "evict",
    "latest_metadata",
    "plan_adoption",
    "plan_repair",
    "step_back",
    "was_put_back",
]
