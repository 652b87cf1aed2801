"""Addresses and certificates of local clusters."""

from __future__ import annotations

import shlex
import shutil
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from insync.replication.cli.local.transports import CertificateError, Certificates, chosen, listeners

from ...requires import missing
from .command_process import command


def openssl() -> None:
    if shutil.which("openssl") is None:
        missing("no openssl on the path")


def test_addresses() -> None:
    assert listeners("tcp", 2) == ("tcp://127.0.0.1:0",)
    assert listeners("tls", 2, 9093) == ("tls://127.0.0.1:9093",)
    assert listeners("shm", 1) == ("shm://@",)
    assert [listeners("mix", node, 9000) for node in (1, 2, 3, 4)] == [
        ("tcp://127.0.0.1:9000",),
        ("tcp://127.0.0.1:9000", "unix://@"),
        ("tcp://127.0.0.1:9000", "shm://@"),
        ("tcp://127.0.0.1:9000",),
    ]


def test_a_url_is_where_nodes_listen() -> None:
    assert listeners("ws://127.0.0.1:0", 2) == ("ws://127.0.0.1:0",)
    assert listeners("packet:///run/node-{node}", 2) == ("packet:///run/node-2",)
    assert chosen("tcp", "unix:///run/node-{node}") == "unix:///run/node-{node}"
    assert chosen("tcp", None) == "tcp"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "telling"),
    [("nope://x", "no transport for nope://"), ("tcp://x", "host:port"), ("x", "not an address")],
)
@pytest.mark.parametrize("name", ["up", "demo"])
def test_a_url_of_no_transport_is_refused(tmp_path: Path, name: str, url: str, telling: str) -> None:
    with command([name, "--listen", url], tmp_path) as run:
        assert run.finish() == 2
        assert telling in run.lines["stderr"][-1] and f"--listen {url}" in run.lines["stderr"][-1]


def test_certificates_name_whom_they_are_for(tmp_path: Path) -> None:
    openssl()
    made = Certificates.make(tmp_path / "c", [1, 2])
    for name in (1, 2, "client"):
        files = made.of(name)  # type: ignore[arg-type]
        shown = subprocess.run(
            ["openssl", "x509", "-in", files.certificate, "-noout", "-text"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert f"URI:isr://{made.cluster_id}/{name}" in shown
        assert stat.S_IMODE(Path(files.key).stat().st_mode) == 0o600
    assert not (tmp_path / "c" / "authority.key").exists(), "nobody can issue more of them"
    assert Certificates.make(tmp_path / "c", [1]).cluster_id == made.cluster_id


def test_without_openssl_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CertificateError, match="apt-get install openssl"):
        Certificates.make(tmp_path / "c", [1])


def test_a_failure_of_openssl_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "openssl"
    fake.write_text("#!/bin/sh\necho no entropy >&2\nexit 3\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CertificateError, match="openssl req failed: no entropy"):
        Certificates.make(tmp_path / "c", [1])


@pytest.mark.slow
def test_a_cluster_over_tls_tells_clients_where_their_certificates_are(tmp_path: Path) -> None:
    openssl()
    with command(["up", "--nodes", "1", "--transport", "tls"], tmp_path) as run:
        run.wait_for_line("insync consume hello")
        told = dict(shlex.split(line)[1].split("=", 1) for line in run.lines["stdout"] if "export" in line)
        assert told["INSYNC_SERVERS"].startswith("tls://127.0.0.1:")
        assert all(
            Path(told[f"INSYNC_TLS_{name}"]).exists() for name in ("CERTIFICATE", "KEY", "AUTHORITIES")
        )
        run.signal(signal.SIGINT)
        assert run.finish() == 130


def test_a_port_makes_no_sense_for_local_sockets(tmp_path: Path) -> None:
    with command(["up", "--transport", "shm", "--port", "9092"], tmp_path) as run:
        assert run.finish() == 2
        assert "no port" in run.lines["stderr"][-1]
