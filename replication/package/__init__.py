"""insync: partitioned, replicated, append-only logs with Kafka's semantics, inside a Python service.

Where to begin:

  insync.replication            `Node`, `Producer`, `Consumer`, `Admin` for trio, `Blocking...` for threads
  insync.replication.asyncio    the same clients and node for asyncio
  insync.replication.listeners  handlers for the records of a consumer group
  insync.replication.state      replicated dicts, queues, locks, elections and state machines of your own
  insync.replication.simulation a whole cluster under a seed: faults, invariants, your service in it
  insync.storage                one partition's log on disk, and the record batch format
  insync.transport              the transport interface, for plugin authors, with its conformance kit
  insync.replication.metadata   the metadata store interface, for plugin authors, with its conformance kit
  insync.plugins                transports, stores, Kafka's protocol, the dashboard and Spark, found through entry
                                points; others may add to it

The command line is `insync`, or `python -m insync`; `insync demo` shows a cluster at work.

The documentation is in `docs/` of the source: concepts, clients, operations, and pages for plugin authors.
"""

from __future__ import annotations

from pkgutil import extend_path

# A regular package wins over a folder that is only called `insync`, such as a clone of the source beside a program;
# plugins of other distributions that install into `insync.plugins` are still found.
__path__ = extend_path(__path__, __name__)

__all__ = ["__version__"]


def __getattr__(name: str) -> str:
    """Read the version of the installed distribution when it is first asked for: the look-up costs milliseconds."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version

    globals()[name] = found = version("insync")
    return found
