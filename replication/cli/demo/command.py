"""`insync demo`: the command."""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter, validators

from ..clusters import Json, print_json, say
from ..errors import EXIT_FAILURE, UsageError
from ..local.transports import TransportName

if TYPE_CHECKING:
    from .story import Options

RECORDS_MIN = 10


def demo(
    *,
    nodes: Annotated[int, Parameter(validator=validators.Number(gte=3, lte=9))] = 3,
    input: Path | None = None,
    records: Annotated[int | None, Parameter(validator=validators.Number(gte=RECORDS_MIN))] = None,
    seed: int | None = None,
    keep: Path | None = None,
    transport: TransportName = "tcp",
    store: str | None = None,
    listen: str | None = None,
    no_spark: Annotated[bool, Parameter(show_default=False)] = False,
    plant: Annotated[Literal["drop", "double", "swap", "flip"] | None, Parameter(show=False)] = None,
    json: Json = False,
) -> int:
    """Kill a leader under load and check that nothing was lost.

    Starts nodes as processes of their own, produces real text with acks=all, kills (SIGKILL) the node that leads
    most partitions while its records are in flight, starts it again, and then compares every record on every
    replica's disk with the input. The status is 0 only if nothing was lost, doubled, reordered or altered and all
    replicas are byte for byte the same.

    Example: `insync demo --records 3000000 --keep /tmp/demo`

    Parameters
    ----------
    nodes
        How many nodes; every partition has three replicas.
    input
        A text file, or a folder of them; each line is a record, its key the file's path. Without it: every .py file
        of this Python's standard library.
    records
        Exact number of records: the input is cut, or repeated from its beginning.
    seed
        Decides the moment of the kill; told in the output, so that a run can be repeated.
    keep
        Keep the cluster's data in this new or empty folder.
    transport
        How nodes and clients reach each other. tls: with certificates made for the run, by the command openssl.
        unix, shm: within this machine. mix: every node has other addresses, each pair takes the nearest.
    store
        URL of a metadata store of any installed scheme, empty; without it a SQLite file.
    listen
        Instead: the URL that nodes listen on, of any transport that is installed. {node} in it stands for a node's
        number: `--listen ws://127.0.0.1:0`, `--listen packet:///tmp/node-{node}`.
    no_spark
        Leave out the last step, in which a Spark job that has read along counts the lines of each module. Without
        PySpark or Java it is left out anyway.
    json
        Print one line of JSON on standard output at the end; what happens is told on standard error.
    """
    from ..local.transports import chosen as reached_by
    from ..running import run
    from .plant import Plant
    from .story import Options

    reached = reached_by(transport, listen)
    chosen = random.SystemRandom().randrange(10**6) if seed is None else seed
    planted = Plant(plant) if plant else None
    options = Options(nodes, chosen, keep, records, planted, reached, not no_spark, store)
    return run(lambda: _play(options, input, as_json=json))


async def _play(options: Options, source: Path | None, as_json: bool) -> int:
    import trio

    from .inputs import open_input
    from .scene import Scene, make_view
    from .story import Story

    scene = Scene(f"insync demo: {options.nodes} nodes over {options.transport}, seed {options.seed}")
    data = await trio.to_thread.run_sync(open_input, source, abandon_on_cancel=True)
    if (options.records or data.records) < RECORDS_MIN:
        raise UsageError(
            f"input {data.name} has {data.records} lines, too few to kill a node in the middle of them; "
            f"repeat them with --records {RECORDS_MIN} or more"
        )
    with _folder(options.keep) as folder, make_view(scene, sys.stderr if as_json else sys.stdout) as view:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(view.keep_showing)
            report = await Story(options, folder, data, scene).tell()
            nursery.cancel_scope.cancel()
    if as_json:
        print_json(report.as_dict())
    elif options.keep:
        say(f"the data is kept in {options.keep}")
    return 0 if report.ok else EXIT_FAILURE


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """Where the cluster lives: the folder to keep, or a temporary one that is removed whatever happens.

    Entered and left while signals are being received, so that a Ctrl-C cannot cut the removal short.
    """
    if keep is None:
        folder = Path(tempfile.mkdtemp(prefix="insync-demo-"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    else:
        if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
            raise UsageError(
                f"--keep {keep}: it exists and is not an empty folder; name a new one or empty it"
            )
        keep.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield keep
