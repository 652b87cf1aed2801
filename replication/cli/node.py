"""`insync node`: one node, until it is asked to stop."""

from __future__ import annotations

import json as json_
import logging
import os
import signal
import sys
from collections.abc import AsyncIterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from .clusters import Flag, say

if TYPE_CHECKING:
    from ..node import Node, NodeSettings


def node(
    *,
    config: Path | None = None,
    node_id: int | None = None,
    data_dir: tuple[Path, ...] = (),
    store: str | None = None,
    listen: tuple[str, ...] = (),
    serve_store: str | None = None,
    cluster_id: str | None = None,
    rack: str | None = None,
    session_timeout_ms: int | None = None,
    storage_stall_timeout_ms: int | None = None,
    busy_poll_us: int | None = None,
    secret_file: Path | None = None,
    node_secret_file: Path | None = None,
    tls_certificate: Path | None = None,
    tls_key: Path | None = None,
    tls_authorities: Path | None = None,
    allow_insecure: Flag = False,
    allow: tuple[str, ...] = (),
    set: Annotated[tuple[str, ...], Parameter(name="--set")] = (),
    metrics_port: int | None = None,
    log_level: Literal["debug", "info", "warning", "error"] = "info",
    log_format: Literal["text", "json"] | None = None,
    json: Flag = False,
    stop_with_stdin: Flag = False,
) -> int:
    """Run one node of a cluster until SIGINT or SIGTERM.

    All nodes of a cluster share one metadata store and nothing else. The first one to arrive founds the cluster.
    One line on standard output says when the node serves; changes of leaders, ISRs and epochs go to standard
    error, one line each.

    Settings come from the file, then from INSYNC_NODE_<NAME> in the environment, then from here; the last one wins.

    Example: `insync node --node-id 1 --data-dir /srv/n1 --store sqlite:///srv/meta.db --listen tcp://127.0.0.1:9092`

    Parameters
    ----------
    config
        TOML file with settings, one key each, by the names of `insync.replication.NodeSettings`.
    node_id
        Number of this node, unique in the cluster, the same at every start.
    data_dir
        Folder for this node's logs; made if absent. It belongs to this node of this cluster. Give it several times
        for several devices: partitions are spread over them, and a device that fails affects only its own.
    store
        URL of the metadata store, e.g. sqlite:///srv/meta.db (an absolute path).
    listen
        Where to listen, by default tcp://127.0.0.1:0 and shm://@; port 0 takes a free one, shm://@ a free name.
        Give it several times for several addresses: others take the nearest that they can reach.
    serve_store
        Serve the store to other nodes here, e.g. tcp://10.0.0.1:9100; they use it by --store remote+tcp://10.0.0.1:9100.
    cluster_id
        Refuse to join any other cluster than this.
    rack
        The node's rack; replicas of a partition are spread over the racks.
    session_timeout_ms
        How long the node may be silent before the others take over from it; by default 1000, on ZooKeeper
        and PostgreSQL 6000.
    storage_stall_timeout_ms
        A log directory in which one write takes longer goes offline.
    busy_poll_us
        For how many microseconds after each append the node polls for messages instead of sleeping; by default 0.
    secret_file
        File with the cluster's secret, the same in nodes and clients; else INSYNC_SECRET_FILE or INSYNC_SECRET.
    node_secret_file
        File with a secret that all nodes have and no client: a peer that claims to be a node must know it.
    tls_certificate
        File in PEM with the node's certificate, for tls://; else INSYNC_TLS_CERTIFICATE names it.
    tls_key
        File in PEM with the certificate's key; else INSYNC_TLS_KEY names it.
    tls_authorities
        File in PEM with the authorities whose certificates are trusted; else INSYNC_TLS_AUTHORITIES names it.
    allow_insecure
        Allow addresses beyond this machine without a secret or certificates: only on a private network.
    set
        Any setting, as name=value; give it several times for several.
    allow
        What clients may do, e.g. client=consume or client/etl=produce+admin; repeatable. Without it: everything.
    metrics_port
        Serve metrics for Prometheus, /health and /ready by HTTP at this port of 127.0.0.1 (see --set metrics_host).
    log_level
        The least severe level of the lines on standard error.
    log_format
        Lines of text, or one JSON object a line; text if not set elsewhere.
    json
        Print the ready line in JSON.
    stop_with_stdin
        Stop when standard input ends: a parent that holds the other end never leaves a node behind.
    """
    import trio

    from ..node import load_settings
    from ..node.process._collector import collect_seldom
    from ..node.process._descriptors import allow_open_files
    from .running import stop_when_stdin_ends

    if stop_with_stdin:
        stop_when_stdin_ends()
    given: dict[str, Any] = {
        "node_id": node_id,
        "log_dirs": [str(folder) for folder in data_dir] or None,
        "store": store,
        "listeners": listen or None,
        "serve_store": serve_store,
        "cluster_id": cluster_id,
        "rack": rack,
        "session_timeout_ms": session_timeout_ms,
        "storage_stall_timeout_ms": storage_stall_timeout_ms,
        "busy_poll_us": busy_poll_us,
        "secret_file": None if secret_file is None else str(secret_file),
        "node_secret_file": None if node_secret_file is None else str(node_secret_file),
        "tls_certificate": None if tls_certificate is None else str(tls_certificate),
        "tls_key": None if tls_key is None else str(tls_key),
        "tls_authorities": None if tls_authorities is None else str(tls_authorities),
        "allow_insecure": allow_insecure or None,
        "allow": allow or None,
        "metrics_port": metrics_port,
        "log_format": log_format,
    }
    settings = load_settings(file=config, assignments=set, given=given)
    _log_to_stderr(settings, log_level)
    collect_seldom()
    allow_open_files()
    return trio.run(_serve, settings, json)


async def _serve(settings: NodeSettings, as_json: bool) -> int:
    """Serve until a signal asks to stop (or the node fails); status 0 after SIGTERM, 128 + signal after others."""
    import trio

    from ..node import Node
    from .running import STOP_SIGNALS

    starting, serving = trio.CancelScope(), trio.CancelScope()
    caught: list[int] = []

    async def stop_on_signal(signals: AsyncIterable[int]) -> None:
        async for number in signals:
            caught.append(number)
            (serving if ready else starting).cancel()

    ready = False
    with trio.open_signal_receiver(*STOP_SIGNALS) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop_on_signal, signals)
            with starting:
                async with Node(settings) as node:
                    ready = True
                    _announce(node, as_json)
                    with serving:
                        await trio.sleep_forever()
            nursery.cancel_scope.cancel()
    return 0 if not caught or caught[0] == signal.SIGTERM else 128 + caught[0]


def _announce(node: Node, as_json: bool) -> None:
    if as_json:
        ready = {
            "event": "ready",
            "node_id": node.node_id,
            "endpoints": list(node.endpoints),
            "gateways": list(node.gateway_endpoints),
            "store": node.store_url,
            "metrics": node.metrics_address,
            "cluster_id": node.cluster_id,
            "pid": os.getpid(),
        }
        say(json_.dumps(ready), flush=True)
    else:
        served = ", ".join([*node.endpoints, *node.gateway_endpoints])
        say(f"node {node.node_id} of cluster {node.cluster_id} serves {served}", flush=True)


def _log_to_stderr(settings: NodeSettings, level: str) -> None:
    from ...transport.repeats import REPEATS
    from ..node.log_lines import JsonFormatter, TextFormatter

    handler = logging.StreamHandler(sys.stderr)
    form = JsonFormatter if settings.log_format == "json" else TextFormatter
    handler.setFormatter(form(settings.node_id))
    handler.addFilter(REPEATS)
    logging.basicConfig(handlers=[handler])
    # What libraries of plugins tell at INFO is not the node's; what they warn of may be.
    logging.getLogger("insync").setLevel(level.upper())
    if logging.getLevelName(level.upper()) > logging.WARNING:
        logging.getLogger().setLevel(level.upper())
