"""How the nodes of a local cluster are reached, and certificates made for one that is reached by TLS."""

from __future__ import annotations

import shutil
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import attrs

from ..errors import CommandError, UsageError

if TYPE_CHECKING:
    from ....transport import TlsFiles

TransportName = Literal["tcp", "tls", "unix", "shm", "mix"]

_NODE = "{node}"
"""Stands for a node's number in the URL that a user gives for all of them."""
_VALID_DAYS = "30"
_TIMEOUT = 60.0
_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class CertificateError(CommandError):
    """Certificates could not be made; the message says what is missing."""


def chosen(transport: TransportName, listen: str | None) -> str:
    """The user's choice, by name or as a URL to listen on: any transport that is installed has one.

    Raises:
      UsageError: No transport knows this URL.
    """
    from ....transport import TransportError
    from ....transport.registry import resolve

    if listen is None:
        return transport
    try:
        resolve(listen.replace(_NODE, "1"))
    except (TransportError, ValueError) as error:
        raise UsageError(f"--listen {listen}: {error}") from error
    return listen


def listeners(transport: str, node_id: int, port: int = 0) -> tuple[str, ...]:
    """Where a node of a local cluster listens, by a name or a URL; a `port` of 0 takes a free one.

    By `mix` every node has another choice of addresses, tcp among them: each pair takes the nearest that both have.
    """
    if "://" in transport:
        return (transport.replace(_NODE, str(node_id)),)
    host = f"127.0.0.1:{port}"
    match transport:
        case "tcp" | "tls":
            return (f"{transport}://{host}",)
        case "unix" | "shm":
            return (f"{transport}://@",)
        case "mix":
            local = ("", "unix://@", "shm://@")[(node_id - 1) % 3]
            return tuple(url for url in (f"tcp://{host}", local) if url)
    raise AssertionError(f"{transport} is not the name of a transport")


@attrs.frozen
class Certificates:
    """Of one cluster: an authority of its own, a certificate for each node and one for clients."""

    folder: Path
    cluster_id: str

    @classmethod
    def make(cls, folder: Path, nodes: Sequence[int]) -> Certificates:
        """New ones in `folder`, by the `openssl` command; the cluster's id there is kept if there is one.

        Raises:
          CertificateError: The command is missing or fails.
        """
        if shutil.which("openssl") is None:
            raise CertificateError(
                "the command openssl, which creates certificates, is not installed: install it "
                "(on Debian: apt-get install openssl), or use another --transport"
            )
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        named = folder / "cluster-id"
        if not named.exists():
            named.write_text(uuid.uuid4().hex)
        made = cls(folder, named.read_text().strip())
        subject = f"/CN=insync cluster {made.cluster_id[:8]}"
        made._run(
            *("req", "-x509", *_CURVE, "-days", _VALID_DAYS, "-subj", subject),
            *("-keyout", "authority.key", "-out", "authority.pem"),
        )
        for name in (*map(str, nodes), "client"):
            made._issue(name)
        (folder / "authority.key").unlink()
        return made

    def of(self, name: int | Literal["client"]) -> TlsFiles:
        """The files of one node, or of clients."""
        from ....transport import TlsFiles

        paths = (self.folder / file for file in (f"{name}.pem", f"{name}.key", "authority.pem"))
        return TlsFiles(*map(str, paths))

    def _issue(self, name: str) -> None:
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName=URI:isr://{self.cluster_id}/{name}\n")
        self._run(
            *("req", *_CURVE, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr"),
        )
        self._run(
            *("x509", "-req", "-in", f"{name}.csr", "-days", _VALID_DAYS, "-out", f"{name}.pem"),
            *("-CA", "authority.pem", "-CAkey", "authority.key", "-CAcreateserial"),
            *("-extfile", extensions.name),
        )
        extensions.unlink()
        (self.folder / f"{name}.csr").unlink()

    def _run(self, *arguments: str) -> None:
        """Keys are made readable by their owner alone by openssl itself."""
        try:
            subprocess.run(
                ["openssl", *arguments],
                cwd=self.folder,
                check=True,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT,
            )
        except subprocess.CalledProcessError as error:
            lines = [line for line in error.stderr.splitlines() if line.strip()]
            why = lines[-1] if lines else f"status {error.returncode}"
            raise CertificateError(f"openssl {arguments[0]} failed: {why}") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CertificateError(f"openssl {arguments[0]} failed: {error}") from error
