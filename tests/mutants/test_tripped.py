"""Every invariant of docs/protocol.md is there because something trips it: a planted error for each, and its seed.

A seed is where to begin: runs change with every change of the core, so others are tried after it.
"""

from __future__ import annotations

from itertools import count, islice

import pytest

from insync.replication.simulation import Run, Settings, run_watched
from insync.replication.simulation.run import outcome_of

from .catalogue import load
from .hunt import CHECKED
from .survey import note_all

TRIPPED = {
    "S1": ("Z1", 12),
    "S2": ("K142", 0),
    "S3": ("Z2", 7),
    "S3b": ("Z1", 12),
    "S4": ("Z18", 0),
    "S5": ("K66", 0),
    "S6": ("K1", 0),
    "S7": ("Z1", 0),
    "S8": ("Z1", 0),
    "S9": ("Z10", 0),
    "S10": ("K115", 1),
    "S11": ("K11", 0),
    "S12": ("K2", 0),
    "S13": ("Z3", 0),
    "S14": ("K19", 0),
    "S15": ("Z32", 18),
    "S16": ("K21", 3),
    "S17": ("K65", 0),
    "S18": ("K82", 3),
    "S19": ("Z47", 2),
    "S20": ("K11", 0),
    "S21": ("K70", 0),
    "S23": ("K100", 4),
    "S24": ("K10", 0),
    "S25": ("K191", 215),
    "S26": ("K171", 24),
    "S27": ("K221", 30),
    "S28": ("K235", 0),
    "S29": ("K231", 0),
    "S30": ("K237", 7),
    "S31": ("K233", 0),
    "S32": ("K259", 0),
    "S33": ("K257", 0),
    "S34": ("K253", 0),
    "S35": ("K254", 0),
    "S36": ("K252", 0),
    "S37": ("K291", 11),
    "S38": ("K292", 5555),
    "S39": ("K295", 59),
    "S40": ("K60", 216),
    "S41": ("K300", 65),
    "S42": ("K302", 0),
    "S43": ("TZ15", 7),
    "L1": ("K14", 0),
    "L2": ("K122", 0),
    "L3": ("K114", 1),
    "L4": ("Z53", 24),
    "L5": ("K140", 0),
    "L6": ("Z12", 0),
    "L7": ("Z26", 0),
    "L8": ("K105", 0),
    "L9": ("K14", 0),
    "L10": ("K14", 0),
    "L11": ("K117", 2),
    "L12": ("K134", 0),
    "L13": ("K132", 0),
    "L14": ("K161", 15),
    "L15": ("K195", 21),
    "L16": ("K236", 1),
    "L17": ("K256", 0),
    "G1": ("GZ1", 0),
    "G3": ("GZ17", 0),
    "G4": ("GZ19", 0),
    "G5": ("GZ21", 0),
    "G6": ("K232", 0),
    "G7": ("GZ47", 44),
    "G8": ("GZ10", 0),
    "G9": ("GZ52", 2),
    "G10": ("GZ34", 44),
    "G11": ("GZ46", 0),
    "G12": ("GZ40", 0),
    "G13": ("GZ42", 0),
    "G14": ("GZ30", 14),
    "GL1": ("GZ9", 0),
    "GL2": ("GZ4", 10),
    "GL3": ("GZ28", 0),
    "GL4": ("GZ23", 0),
    "GL6": ("GZ9", 2),
    "T11": ("TZ48", 19),
}
"""By invariant: a planted error, and a seed under which it broke the invariant, whatever else it breaks."""
NEEDS = {"S26": "RS", "S39": "IL", "S40": "PS", "S41": "CF", "L14": "RT"}
"""Faults without which nothing can trip it."""
MOST_SEEDS = 150
"""Of those that have the faults."""
EQUAL_RUNS = ("K20", 0)
"""S22 compares two runs of a seed."""


def noted(seed: int, *, profile: str = "") -> set[str]:
    """All that the oracle finds broken in a run that goes on."""
    found: set[str] = set()
    with pytest.MonkeyPatch.context() as patch:
        note_all(patch, found)
        outcome_of(Run(seed, Settings.swarm(seed, profile=profile)))
    return found


def _is_able(settings: Settings, invariant: str) -> bool:
    needed = NEEDS.get(invariant)
    return not needed or needed in settings.faults


def test_every_invariant_has_its_error() -> None:
    assert {*TRIPPED, "S22"} == set(CHECKED)


@pytest.mark.slow
@pytest.mark.parametrize("invariant", TRIPPED)
def test_a_planted_error_trips_it(invariant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, first = TRIPPED[invariant]
    load()[name].plant(monkeypatch)
    able = (each for each in count() if _is_able(Settings.swarm(each), invariant))
    profile, seeds = load()[name].profile, (first, *islice(able, MOST_SEEDS))
    assert any(invariant in noted(seed, profile=profile) for seed in seeds), name


def test_nothing_is_noted_without_an_error() -> None:
    assert noted(0) == noted(1) == set()


def test_a_run_that_differs_from_itself_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    name, seed = EQUAL_RUNS
    load()[name].plant(monkeypatch)
    violation = run_watched(seed).violation
    assert violation is not None and violation.invariant == "S22"
