"""Consumer groups under faults: coordinators on a replicated log, members, and an oracle that knows all.

The partition's replication is a model; coordinators and members are the machines of `core.coordination`.
`python -m insync.replication.simulation.groups` runs seeds.
"""

from .run import Result, run

__all__ = ["Result", "run"]
