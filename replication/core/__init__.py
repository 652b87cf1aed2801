"""The replication protocol as pure state machines: no I/O, no clock, no randomness of their own.

`Replica` is one replica of one partition; `Controller` is the part of a node that may have to say who leads.
Both take events and give effects. Everything that decides stands in small pure functions: `epochs` (divergence
and truncation), `isr` (lag, joining, the high watermark), `producers` (duplicates), `transitions` (the partition
record), `topics` (names, settings, placement).
"""
