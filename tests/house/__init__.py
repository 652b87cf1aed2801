"""Figures of what the code costs its reader. `python -m tests.house`."""
