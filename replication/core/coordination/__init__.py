"""The decisions of a coordinator: consumer groups and their offsets, as pure machines over one internal partition.

`Shard` runs a state machine over the log of one partition of `__consumer_offsets`: it decides, applies what the log
has accepted, and answers what the high watermark has passed. `GroupCoordinator` is that state machine for groups.
"""
