"""Oracles: the invariants of a run, judged from outside the machines."""
