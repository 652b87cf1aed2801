"""The SQLite store: one file on one machine, shared by all processes there."""
