"""Election policies: the built-in ones, and those of plugins (entry point group `insync.election_policies`)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.metadata import entry_points

from ..core.faces import POLICIES, AskLogs, Elect, Policy, Situation, Verdict, Wait

log = logging.getLogger("insync.node")

GROUP = "insync.election_policies"


def election_policies() -> Mapping[str, Policy]:
    """All that are installed, by name. One that cannot be loaded is left out, and the log says so."""
    found: dict[str, Policy] = {}
    for entry in entry_points(group=GROUP):
        try:
            found[entry.name] = _guarded(entry.name, entry.load())
        except Exception as error:  # noqa: BLE001 - a plugin's code: the node does without it
            log.error("the election policy %s (%s) cannot be loaded: %r", entry.name, entry.value, error)
    return {**found, **POLICIES}


def _guarded(name: str, policy: Policy) -> Policy:
    """The policy, with `Wait` in place of what it raises or of a verdict that cannot be carried out.

    It is asked by the controller, and by the next one if that ends: one mistake would end every node in turn.
    """
    told: set[str] = set()

    def ask(situation: Situation) -> Verdict:
        try:
            verdict = policy(situation)
            wrong = _why_not(verdict, situation)
        except Exception as error:  # noqa: BLE001 - as above
            verdict, wrong = Wait(), f"raised {error!r}"
        if not wrong:
            return verdict
        at = str(situation.record.id)
        if f"{at}: {wrong}" not in told:  # the controller asks again at every change
            told.add(f"{at}: {wrong}")
            log.error(
                "the election policy %s %s: %s waits for an eligible replica, or insync elect --unclean",
                name,
                wrong,
                at,
            )
        return Wait()

    return ask


def _why_not(verdict: object, situation: Situation) -> str:
    """Why a verdict cannot be carried out; empty if it can."""
    match verdict:
        case Wait():
            return ""
        case Elect(node) if node in situation.living:
            return ""
        case AskLogs(nodes) if nodes and {*nodes} <= {*situation.living}:
            return ""
    return f"has decided {verdict!r}, with {situation.living} alive"
