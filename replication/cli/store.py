"""`insync store`: serve one machine's metadata store to a cluster, until asked to stop."""

from __future__ import annotations

import json as json_
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from .clusters import Flag
from .errors import CommandError, UsageError


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

    For clusters of several machines without ZooKeeper. Nodes use the URL that the first line on standard output
    names as their `--store`. While this process is away nothing is elected, but leaders go on; when it starts again
    the nodes register anew.

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
        Listen also for other machines without a secret or certificates: only where nobody else is on the network.
    allow
        Which clients may use the store beside nodes, e.g. client/backup=store; repeatable. Without it: none.
    json
        Say on standard output in JSON where it serves.
    """
    from ...transport import Security, TlsFiles
    from ..metadata import SqliteStore, serve_store
    from ..metadata.registry import REMOTE
    from ..node.authorisation import Authoriser
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
            print(json_.dumps({"store": url}) if json else f"serving {path} as {url}")
            sys.stdout.flush()
            await trio.sleep_forever()

    status = run(main)
    return 0 if status == 128 + signal.SIGTERM else status


def _for_stores(rules: Sequence[str]) -> Sequence[str]:
    """The rules, if each lets clients use the store and nothing else: there is nothing else here."""
    from ..node.authorisation import Operation, Rule

    for text in rules:
        if Rule.parse(text).operations != {Operation.STORE}:
            raise UsageError(
                f"--allow {text}: of a store there is only the operation store to be let to clients"
            )
    return rules
