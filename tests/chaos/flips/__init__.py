"""Damage of small files: one byte, one file at a time, in the folders of three nodes that do not run."""
