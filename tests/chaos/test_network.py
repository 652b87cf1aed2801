"""Packets that are to be lost are, between two hosts of a run, and others are not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.requires import missing

from .members import PORT
from .network import CannotIsolateError, Network, network

pytestmark = pytest.mark.slow
_LISTEN = """
import socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def net() -> Iterator[Network]:
    """Two hosts; something listens on the second."""
    try:
        with network((1, 2)) as made:
            command = [*made.command(2), sys.executable, "-c", _LISTEN, made.address(2), str(PORT)]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as listener:
                assert listener.stdout is not None and listener.stdin is not None
                assert listener.stdout.readline()
                yield made
                listener.stdin.close()
    except CannotIsolateError as error:
        missing(str(error))


def test_losses_are_counted_until_they_end(net: Network) -> None:
    assert not net.is_cut(1, 2, PORT)
    net.lose(2, 1, 50)
    seen: set[bool] = set()
    for _ in range(40):
        seen.add(net.is_cut(1, 2, PORT))
        if len(seen) == 2:
            break
    assert seen == {True, False} and net.lost() > 0
    net.heal()
    assert not net.is_cut(1, 2, PORT) and net.lost() == 0


def test_netem_spoils_what_a_host_sends(net: Network) -> None:
    if not net.has_netem:
        # It is a module of the kernel: no package brings it, so nobody can be asked to have it.
        pytest.skip("not run: this kernel has no netem")
    assert net.spoil(2, "loss 100%")
    assert net.is_cut(1, 2, PORT)
    assert net.unspoil(2) > 0
    assert not net.is_cut(1, 2, PORT)
