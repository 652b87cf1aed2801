"""The large faults of a run, drawn before it begins: a list that can be printed, stored, cut short and replayed."""

from __future__ import annotations

import random

import attrs

from ..settings import SESSION, Settings


@attrs.frozen(kw_only=True)
class Fault:
    """One thing that is done to the cluster at a time; what cannot be done then is left out.

    `label` is one of `FAULTS`, or `EL` for a planned election, `RA` for a reassignment, or `TC` for a change of a
    topic; `nodes` are those it befalls, `seconds` how long it lasts, `amount` how much (its meaning depends on the
    kind).
    """

    at: float
    label: str
    kind: str
    nodes: tuple[int, ...]
    seconds: float = 0.0
    amount: float = 0.0

    def __str__(self) -> str:
        where = f" node {','.join(map(str, self.nodes))}" if self.nodes else ""
        lasting = f" for {self.seconds:g} s" if self.seconds else ""
        return f"{self.label} {self.kind}{where}{lasting}"


def draw(seed: int, settings: Settings) -> tuple[Fault, ...]:
    """The faults of a seed, in order of time; all of them begin before the storm ends."""
    dice = random.Random(f"faults {seed}")
    found: list[Fault] = []
    labels = [label for label in settings.faults if label in _KINDS and label not in _APART]
    at = 4.0
    while labels and settings.fault_rate > 0:
        at += dice.expovariate(settings.fault_rate)
        if at >= settings.storm:
            break
        found.append(_draw_one(dice, round(at, 3), dice.choice(labels), settings))
    at = 4.0
    while settings.moves > 0:
        at += dice.choice((0.1, 0.5, 1 / settings.moves, 8.0))
        if at >= settings.storm:
            break
        found.append(
            Fault(at=round(at, 3), label="EL", kind="move leadership from", nodes=(), amount=dice.random())
        )
    for label, name in _APART.items():
        if label in settings.faults and (label != "TE" or settings.transactions):
            found += _draw_apart(seed, settings, label, name)
    return tuple(sorted(found + _draw_admin_requests(seed, settings), key=lambda fault: fault.at))


_APART = {"BK": "lies", "RT": "rot", "RS": "restores", "RD": "depositions", "TE": "ends", "FC": "forgotten"}
_APART |= {"IL": "identities", "PS": "survivors", "FM": "forgotten topics", "CF": "wall clocks"}
"""Labels that are drawn by dice of their own, each at its own times, with the names of these."""
_GAPS = {"RS": (2.0, 8.0, 15.0), "RD": (2.0, 8.0, 15.0), "TE": (1.0, 3.0, 8.0), "FC": (5.0, 12.0)}
_GAPS |= {"IL": (0.5, 1.0, 3.0), "PS": (5.0, 12.0), "FM": (5.0, 12.0)}
"""Seconds from one to the next, where they are not 0.5, 2 or 8."""


def _draw_apart(seed: int, settings: Settings, label: str, name: str) -> list[Fault]:
    """Faults that make a node's folder other than the node has left it, or wait for the end of a transaction."""
    dice = random.Random(f"{name} {seed}")
    strength = 1.0 if label == "TE" else settings.strength
    found: list[Fault] = []
    at = 4.0
    while settings.fault_rate > 0:
        at += dice.choice(_GAPS.get(label, (0.5, 2.0, 8.0))) / strength
        if at >= settings.storm:
            return found
        found.append(_draw_one(dice, round(at, 3), label, settings))
    return found


def _draw_admin_requests(seed: int, settings: Settings) -> list[Fault]:
    """An operator's requests to the controller meanwhile: partitions moved elsewhere, and moves taken back."""
    dice = random.Random(f"requests {seed}")
    found: list[Fault] = []
    at = 4.0
    while settings.reassignments > 0:
        at += dice.choice((0.2, 1 / settings.reassignments, 6.0))
        if at >= settings.storm:
            break
        kind = dice.choice(
            ("reassign", "reassign", "reassign", "cancel a reassignment", "elect the preferred")
        )
        found.append(Fault(at=round(at, 3), label="RA", kind=kind, nodes=(), amount=round(dice.random(), 6)))
    return found + _draw_changes(seed, settings)


def _draw_changes(seed: int, settings: Settings) -> list[Fault]:
    """Topics that are set otherwise, or given more partitions."""
    dice = random.Random(f"changes {seed}")
    found: list[Fault] = []
    at = 4.0
    while settings.changes > 0:
        at += dice.choice((0.2, 1 / settings.changes, 6.0))
        if at >= settings.storm:
            break
        kind = dice.choice(
            ("set the minimum ISR", "set the minimum ISR", "set the minimum ISR", "add a partition")
        )
        found.append(Fault(at=round(at, 3), label="TC", kind=kind, nodes=(), amount=round(dice.random(), 6)))
    return found + _draw_deletions(seed, settings)


def _draw_deletions(seed: int, settings: Settings) -> list[Fault]:
    """Topics that are deleted, and made anew so many seconds later."""
    dice = random.Random(f"deletions {seed}")
    found: list[Fault] = []
    at = 4.0
    while settings.recreations > 0:
        at += dice.choice((0.5, 1 / settings.recreations, 6.0))
        if at >= settings.storm:
            break
        gap, amount = dice.choice((0.1, 0.5, 3.0)), round(dice.random(), 6)
        found.append(
            Fault(at=round(at, 3), label="TC", kind="delete a topic", nodes=(), seconds=gap, amount=amount)
        )
    return found


_KINDS = {
    "CS": (
        ("kill", (0.3, 2.0, 8.0)),
        ("kill", (0.3, 2.0, 8.0)),
        ("kill at once", (0.3, 2.0, 8.0)),
        ("kill the next to join", (0.3, 2.0)),
        ("kill one after the next election", (0.3, 2.0)),
    ),
    "CR": (
        *((("power off", (0.3, 2.0, 8.0)),) * 6),
        ("power off at once", (0.3, 2.0)),
        ("power off the next to join", (0.3, 2.0)),
        ("power off one after the next election", (0.3, 2.0)),
    ),
    "DK": (("tear a write of", (0.3, 2.0, 8.0)),),
    "PZ": (("pause", (0.5, 2.0, 6.0)), ("pause the next to join", (6.0, 8.0))),
    "NP": (("cut", (1.0, 5.0, 10.0)), ("cut one way", (1.0, 5.0, 10.0)), ("isolate", (1.0, 6.0))),
    "CK": (("drift the clock of", (5.0, 15.0)), ("set ahead the clock of", (0.0,))),
    "MS": (
        ("cut from the store", (0.5, 3.0, 6.0)),
        ("end the session of", (0.0,)),
        ("tell late of the ISR", (2.0, 6.0)),
        ("stop the store, as seen by", (0.5, 2.0, 5.0)),
    ),
    "ST": (
        ("hang the disk of", (1.0, 4.0, 9.0)),
        ("hang the disk of", (1.0, 4.0)),
        ("fill a log directory of", (2.0, 6.0, 12.0)),
        ("fail the log of the next to add a member", (0.05, 0.2)),
    ),
    "SD": (("shut down", (0.3, 2.0, 8.0)),),
    "BK": (
        ("put back the folder of", (2.5, 6.0, 12.0)),
        ("put back the folder of", (2.5, 6.0, 12.0)),
        ("start a twin of", (2.5, 6.0)),
        ("cut short a log of", (0.3, 2.0)),
        ("lose power, with a disk that lies, at", (0.3, 2.0)),
    ),
    "RS": (("put back the store, copied now", (1.0, 4.0, 10.0)),),
    "TE": (
        *((("have its coordinator lead where a marker goes", (0.3, 1.0)),) * 2),
        ("kill all who await a marker", (2.0, 6.0)),
        ("kill the coordinator that is to end one", (0.3, 2.0, 8.0)),
    ),
    "FC": (("end everything, and forget the store's last commits, at", (0.5, 1.5, 3.0)),),
    "IL": (
        *((("change the topic id of a log of", (0.3, 2.0)),) * 2),
        ("damage the topic id of a log of", (0.3, 2.0)),
        ("lose the proof of", (0.3, 2.0)),
        ("lose the identity and the proof of", (0.3, 2.0)),
        *((("restore a stray log of", (0.3, 2.0)),) * 3),
    ),
    "PS": (("cut the power of all machines, and spare a device,", (0.5, 3.0, 8.0)),),
    "FM": (("end everything, and forget a topic that was made just now, at", (1.5, 3.0)),),
    "CF": (("set the wall clock of", (2.0, 6.0, 12.0)),),
    "RD": (("depose, and put back the store, copied now:", (5.0, 7.0)),),
    "RT": (
        ("rot a batch of", (0.0,)),
        ("rot a batch that a start will find, of", (0.0,)),
        *((("rot what a follower needs, led by", (0.0,)),) * 3),
    ),
}


def _draw_one(dice: random.Random, at: float, label: str, settings: Settings) -> Fault:
    kind, lasting = dice.choice(_KINDS[label])
    everyone = tuple(range(1, settings.nodes + 1))
    if kind == "kill at once":
        nodes = everyone if dice.random() < 0.5 else tuple(n for n in everyone if dice.random() < 0.6)
    elif kind.startswith("cut") and label == "NP":
        nodes = tuple(dice.sample(everyone, 2))
    elif kind.startswith("stop") or kind == "power off at once" or label in ("FC", "FM"):
        nodes = everyone
    elif label in ("TE", "PS") or "the next" in kind or kind == "tell late of the ISR":
        nodes = ()
    else:
        nodes = (dice.choice(everyone),)
    amount = dice.random()
    if kind.startswith("drift"):
        amount = dice.choice((0.7, 0.9, 1.2, 1.5))
    elif kind.startswith("set"):
        amount = dice.choice((1.0, SESSION, 20.0))
    return Fault(
        at=at, label=label, kind=kind, nodes=nodes, seconds=dice.choice(lasting), amount=round(amount, 3)
    )
