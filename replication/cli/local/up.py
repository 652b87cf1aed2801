"""`insync up`: a local cluster in the foreground, to try things on."""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import attrs
from cyclopts import Parameter, validators

from ..clusters import Flag, Json, print_json, say
from ..errors import EXIT_FAILURE, UsageError
from .transports import TransportName

if TYPE_CHECKING:
    from .processes import NodeProcess
    from .transports import Certificates

Port = Annotated[int, Parameter(validator=validators.Number(gte=0, lte=65535))]
NodeCount = Annotated[int, Parameter(validator=validators.Number(gte=1, lte=99))]


def up(
    *,
    nodes: NodeCount = 3,
    data_dir: Path | None = None,
    port: Port = 0,
    transport: TransportName = "tcp",
    store: str | None = None,
    listen: str | None = None,
    kafka: Flag = False,
    kafka_port: Port = 0,
    metrics_port: Annotated[Port | None, Parameter(show_default=False)] = None,
    dashboard: Flag = False,
    json: Json = False,
) -> int:
    """Run a local cluster in the foreground until Ctrl-C.

    Every node is a process of its own on 127.0.0.1; all stop with this command, however it ends. A node that dies
    is reported and not started again, so you can kill one and watch the others take over.

    Example: `insync up --nodes 3 --data-dir /tmp/cluster --port 9092`

    Parameters
    ----------
    nodes
        How many.
    data_dir
        Folder for logs and metadata, kept for the next time; without it a temporary one, removed at the end.
    port
        Port of the first node, the others have the next ones; 0 takes free ports.
    transport
        How nodes are reached. tls: with certificates made for this cluster, by the command openssl. unix, shm: only
        by processes of this user on this machine. mix: by tcp, and two of three nodes by unix or shm as well.
    store
        URL of the metadata store, of any installed scheme; without it a SQLite file among the data.
    listen
        Instead: the URL that nodes listen on, of any transport that is installed. {node} in it stands for a node's
        number: `--listen ws://127.0.0.1:0`, `--listen packet:///tmp/node-{node}`.
    kafka
        Serve Kafka's clients, too: each node also listens on kafka://127.0.0.1:PORT.
    kafka_port
        PORT of the first node, the others have the next ones; 0 takes free ports.
    metrics_port
        Serve metrics for Prometheus, /health and /ready of the first node at this port of 127.0.0.1, of the others
        at the next ones; 0 takes free ports.
    dashboard
        Show the cluster in the browser, at an address that is printed, and let it be changed there.
    """
    from ..running import run
    from .transports import chosen

    if port and transport in ("unix", "shm"):
        raise UsageError(f"--port {port}: nodes that are reached by {transport} have no port; leave it out")
    if port and listen is not None:
        raise UsageError(f"--port {port}: the URL of --listen says where nodes listen; leave it out")
    if kafka_port and not kafka:
        raise UsageError(f"--kafka-port {kafka_port}: add --kafka, or leave it out")
    reached = chosen(transport, listen)
    first_kafka = kafka_port if kafka else None
    return run(
        lambda: _run(nodes, data_dir, port, reached, store, first_kafka, metrics_port, dashboard, json)
    )


async def _run(
    count: int,
    data_dir: Path | None,
    port: int,
    transport: str,
    store: str | None,
    kafka_port: int | None,
    metrics_port: int | None,
    with_dashboard: bool,
    as_json: bool,
) -> int:
    """The folder is made and removed while signals are being received: a Ctrl-C cannot cut the removal short."""
    import trio

    from .processes import local_nodes, running
    from .transports import Certificates

    with ExitStack() as stack:
        folder = data_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="insync-up-")))
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        log_folder = None if data_dir is not None else Path(tempfile.mkdtemp(prefix="insync-up-logs-"))
        nodes: list[NodeProcess] = []
        if log_folder is not None:
            stack.callback(_remove_logs, log_folder, nodes)
        certificates = None
        if transport == "tls":
            certificates = Certificates.make(folder / "certificates", range(1, count + 1))
        nodes += local_nodes(
            count,
            folder,
            first_port=port,
            transport=transport,
            certificates=certificates,
            log_folder=log_folder,
            metrics_port=metrics_port,
            store=store,
            kafka_port=kafka_port,
        )
        async with running(nodes), AsyncExitStack() as beside:
            page = ""
            if with_dashboard:
                page = await beside.enter_async_context(_dashboard(nodes, log_folder or folder, certificates))
            if as_json:
                _announce(nodes, folder, page)
            else:
                _welcome(nodes, folder, certificates, page)
            async with trio.open_nursery() as nursery:
                for node in nodes:
                    nursery.start_soon(_report_end, node)
    say("insync: all nodes have ended", to=sys.stderr)
    return EXIT_FAILURE


@asynccontextmanager
async def _dashboard(
    nodes: Sequence[NodeProcess], folder: Path, certificates: Certificates | None
) -> AsyncIterator[str]:
    """Run the dashboard beside the nodes; gives its address."""
    from ....transport.security import TLS_VARIABLES
    from .companion import companion
    from .processes import servers_of

    environment = {"INSYNC_SERVERS": servers_of(list(nodes))}
    if certificates is not None:
        environment |= dict(zip(TLS_VARIABLES, attrs.astuple(certificates.of("client")), strict=True))
    arguments = ("dashboard", "--port", "0", "--allow-changes")
    async with companion(arguments, folder / "dashboard.log", environment) as ready:
        yield str(ready["url"])


def _remove_logs(folder: Path, nodes: Sequence[NodeProcess]) -> None:
    """Remove the logs of a cluster whose data is temporary, unless a node has failed: its error names its log."""
    if not any(node.state == "died" for node in nodes):
        shutil.rmtree(folder, ignore_errors=True)


def _announce(nodes: list[NodeProcess], folder: Path, page: str) -> None:
    """One line for programs."""
    from .processes import kafka_servers_of, servers_of

    kafka = kafka_servers_of(nodes)
    print_json(
        {
            "event": "ready",
            "servers": servers_of(nodes).split(","),
            **({"kafka": kafka} if kafka else {}),
            "store": nodes[0].store,
            "data": str(folder),
            "dashboard": page or None,
            "nodes": [
                {
                    "node_id": node.node_id,
                    "pid": node.pid,
                    "endpoints": node.endpoints,
                    "metrics": node.metrics or None,
                    "log": str(node.log_path),
                }
                for node in nodes
            ],
        }
    )
    sys.stdout.flush()


def _welcome(nodes: list[NodeProcess], folder: Path, certificates: Certificates | None, page: str) -> None:
    from ....transport.security import TLS_VARIABLES
    from .processes import kafka_servers_of, servers_of

    for node in nodes:
        metrics = f"  metrics http://{node.metrics}/metrics" if node.metrics else ""
        say(f"node {node.node_id}  pid {node.pid}  {', '.join(node.endpoints)}  log {node.log_path}{metrics}")
    if page:
        say(f"dashboard {page}")
    say(
        "",
        f"data in {folder}, metadata store {nodes[0].store}; Ctrl-C stops all nodes. In another terminal:",
        "",
    )
    say(f"  export INSYNC_SERVERS={shlex.quote(servers_of(nodes))}")
    if kafka := kafka_servers_of(nodes):
        say(f"  export KAFKA_SERVERS={shlex.quote(','.join(kafka))}")
    if certificates is not None:
        for name, path in zip(TLS_VARIABLES, attrs.astuple(certificates.of("client")), strict=True):
            say(f"  export {name}={shlex.quote(path)}")
    say(f"  insync topic create hello --partitions 3 --replication-factor {min(3, len(nodes))}")
    say("  echo 'first record' | insync produce hello")
    say("  insync consume hello --from-beginning --max-records 1", flush=True)


async def _report_end(node: NodeProcess) -> None:
    say(node.died(await node.wait()), to=sys.stderr)
