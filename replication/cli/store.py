"""`insync store`: serve one machine's metadata store to a cluster; repair one that was restored or lost."""

from __future__ import annotations

import json as json_
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import App

from ..core.wording import counted
from .clusters import Flag, Json, print_json, say
from .errors import EXIT_FAILURE, CommandError, UsageError

if TYPE_CHECKING:
    from ..core.recovery.repair import FoundFolder

app = App(
    name="store",
    help="Serve a metadata store to the nodes of a cluster; repair one that was restored or lost.",
    help_format="markdown",
)


@app.default
def store(
    *,
    path: Path,
    listen: str = "tcp://127.0.0.1:0",
    secret_file: Path | None = None,
    node_secret_file: Path | None = None,
    tls_certificate: Path | None = None,
    tls_key: Path | None = None,
    tls_authorities: Path | None = None,
    allow_insecure: Flag = False,
    allow: tuple[str, ...] = (),
    json: Flag = False,
) -> int:
    """Serve a metadata store in a SQLite file to the nodes of a cluster, until SIGINT or SIGTERM.

    For clusters of several machines without PostgreSQL or ZooKeeper. Nodes use the URL that the first line on
    standard output names as their `--store`. While this process is away nothing is elected, but leaders go on; when
    it starts again the nodes register again.

    Example: `insync store --path /srv/insync/meta.db --listen tcp://0.0.0.0:9100 --secret-file /etc/insync/secret`

    Parameters
    ----------
    path
        The SQLite file, made if absent; its folder must exist.
    listen
        Where to listen; port 0 takes a free one.
    secret_file
        File with the cluster's secret, the same in nodes and clients; else INSYNC_SECRET_FILE or INSYNC_SECRET.
    node_secret_file
        File with the nodes' own secret, as they have it: then only who knows that is let in as a node.
    tls_certificate
        File in PEM with a certificate for isr://CLUSTER/store, for tls://; else INSYNC_TLS_CERTIFICATE names it.
    tls_key
        File in PEM with the certificate's key; else INSYNC_TLS_KEY names it.
    tls_authorities
        File in PEM with the authorities whose certificates are believed; else INSYNC_TLS_AUTHORITIES names it.
    allow_insecure
        Allow addresses beyond this machine without a secret or certificates: only on a private network.
    allow
        Which clients may use the store beside nodes, e.g. client/backup=store; repeatable. Without it: none.
    json
        Say on standard output in JSON where it serves.
    """
    from ...transport import Security, TlsFiles
    from ..metadata import SqliteStore, serve_store
    from ..metadata.registry import REMOTE
    from ..node.requests.authorisation import Authoriser
    from .running import run

    authoriser = Authoriser(_for_stores(allow))
    tls = TlsFiles.given(tls_certificate, tls_key, tls_authorities)
    security = Security.load(
        secret_file=secret_file, node_secret_file=node_secret_file, tls=tls, allow_insecure=allow_insecure
    )

    async def main() -> None:
        import trio

        async with SqliteStore(path) as inner, trio.open_nursery() as nursery:
            try:
                serving = await nursery.start(
                    partial(
                        serve_store,
                        inner,
                        listen,
                        security=security,
                        authorise=authoriser,
                        demands_proof=bool(allow),
                    )
                )
            except (OSError, ValueError) as error:
                raise CommandError(f"the store cannot be served at {listen}: {error}") from error
            url = REMOTE + serving.endpoints[0]
            say(json_.dumps({"store": url}) if json else f"serving {path} as {url}")
            sys.stdout.flush()
            await trio.sleep_forever()

    status = run(main)
    return 0 if status == 128 + signal.SIGTERM else status


@app.command
def ddl(url: str) -> int:
    """Print the statements that make a metadata store in a database, for an administrator to run.

    Nodes need it where their role may not make a schema. The role that the URL names is given what it needs.

    Example: `insync store ddl 'postgresql://insync@db1/shop?namespace=orders' | psql -h db1 -U admin shop`

    Parameters
    ----------
    url
        URL of the store, as the nodes have it.
    """
    from ..metadata import open_store

    for line in open_store(url).ddl().splitlines():
        say(line)
    return 0


@app.command
def evidence(*folders: Path) -> int:
    """Print what log directories of stopped nodes know, for `insync store repair` on another machine.

    Example: `insync store evidence /srv/insync/data > node-1.json`

    Parameters
    ----------
    folders
        Log directories of nodes on this machine.
    """
    from .. import wire
    from ..node.recovery._repair import look_into

    if not folders:
        raise UsageError("name the log directories of the nodes on this machine")
    for folder in folders:
        say(wire.encode_record(look_into(folder)).decode())
    return 0


@app.command
def repair(*evidence: Path, store: str, json: Json = False) -> int:
    """Make a store that was restored from a backup, or lost, usable again, from what the nodes' folders hold.

    Stop every node first. Of each partition the most complete log will lead, in a new leader epoch. Topics that the
    store has forgotten come back with default settings, but nothing of them is deleted until retention is set.
    Logs are read and recovered; nothing of them is deleted.
    The status is 1 if a node that has replicas was left out: what only it had is lost when another leads.

    Example: `insync store repair --store sqlite:///srv/meta.db /srv/data-1 /srv/data-2 node-3.json`

    Parameters
    ----------
    evidence
        Log directories of this machine's nodes, and files that `insync store evidence` has written on others.
    store
        URL of the store, e.g. sqlite:///srv/meta.db; an empty one in place of one that was lost.
    """
    from ..metadata import open_store
    from ..node.recovery._repair import repair as repair_store
    from .running import run

    found = [each for path in evidence for each in _found_in(path)]

    async def main() -> int:
        async with open_store(store) as opened:
            done = await repair_store(opened, found)
        told = {
            "partitions": len(done.leaders),
            "topics_found": list(done.topics_found),
            "without_log": [str(each) for each in done.without_log],
            "nodes_left_out": list(done.missing),
        }
        if json:
            print_json(told)
        else:
            say(f"{counted(len(done.leaders), 'partition')} will be led by their most complete logs")
            for name in done.topics_found:
                say(f"topic {name} was unknown to the store; {_settings_now(name)}")
            for each in done.without_log:
                say(f"{each}: no folder has a log of it")
            for node in done.missing:
                say(f"node {node} has replicas and was left out", to=sys.stderr)
        return EXIT_FAILURE if done.missing else 0

    return run(main)


def _settings_now(topic: str) -> str:
    from ..core.control.internal_topics import STANDARD

    if topic in STANDARD:
        return "it has the settings of an internal topic"
    return (
        "it has default settings, and nothing of it is deleted until its retention is set: "
        f"insync config set {topic} retention_ms=..."
    )


def _found_in(path: Path) -> list[FoundFolder]:
    from .. import wire
    from ..core.recovery.repair import FoundFolder
    from ..node.recovery._repair import look_into

    if path.is_dir():
        return [look_into(path)]
    try:
        return [wire.decode_record(FoundFolder, line) for line in path.read_bytes().splitlines() if line]
    except (OSError, wire.WireError) as error:
        raise CommandError(
            f"{path} is neither a log directory nor the output of `insync store evidence`: {error}"
        ) from error


def _for_stores(rules: Sequence[str]) -> Sequence[str]:
    """The rules, if each lets clients use the store and nothing else: there is nothing else here."""
    from ..node.requests.authorisation import Operation, Rule

    for text in rules:
        if Rule.parse(text).operations != {Operation.STORE}:
            raise UsageError(
                f"--allow {text}: of a store there is only the operation store to be let to clients"
            )
    return rules
