"""Faults of a simulated cluster, drawn before a run or set off at a moment."""
