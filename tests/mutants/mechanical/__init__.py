"""Errors that a machine plants: each a single change of the core's syntax tree."""
