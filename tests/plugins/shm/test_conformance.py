import os
import socket
import tempfile

import pytest

from insync.plugins.shm import ShmTransport, UnixTransport
from insync.transport import URL
from insync.transport.testing import Env, cases_for, run_case, skipped_for


class UnixEnv(Env):
    transport = UnixTransport()
    scheme = "unix"

    def __init__(self, folder="/nowhere"):
        self.folder = folder

    def listen_url(self):
        return f"{self.scheme}://{self.folder}/listener.sock"

    def dead_url(self):
        return f"{self.scheme}://{self.folder}/dead.sock"

    def malformed_urls(self):
        return [
            f"{self.scheme}://{rest}"
            for rest in (
                "",
                "/",
                "host/path",
                "host",
                "@name/path",
                "/folder/",
                "/" + "x" * 107,
                "@" + "x" * 107,
            )
        ]

    async def open_raw(self, url):
        stranger = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        stranger.connect(URL.parse(url).path)
        return stranger


class AbstractEnv(UnixEnv):
    def listen_url(self):
        return f"{self.scheme}://@"

    def dead_url(self):
        return f"{self.scheme}://@insync-nobody-listens-here"


class ShmEnv(UnixEnv):
    transport = ShmTransport()
    scheme = "shm"


class AbstractShmEnv(AbstractEnv):
    transport = ShmTransport()
    scheme = "shm"


KILLING = {"E_a_killed_peer_is_noticed", "E_children_that_keep_descriptors_hide_no_death"}
"""Who is killed leaves its socket to the next who listens there."""
NOT_DETERMINISTIC = {
    "I_the_same_seed_gives_the_same_trace",
    "I_what_is_cut_off_stays_cut_off_and_a_new_link_is_whole",
}


def all_cases():
    for env in (UnixEnv, ShmEnv):
        for case in cases_for(env()):
            yield pytest.param(env, case, id=f"{env.scheme}-{case.name}")
    for env in (AbstractEnv, AbstractShmEnv):
        for case in cases_for(env()):
            if case.name[0] in "AH":
                yield pytest.param(env, case, id=f"abstract-{env.scheme}-{case.name}")


@pytest.mark.parametrize(("env", "case"), list(all_cases()))
async def test_kit(env, case):
    # Not pytest's folder: a socket's path has 107 bytes at most.
    with tempfile.TemporaryDirectory() as folder:
        await run_case(case, env(folder))
        assert os.listdir(folder) == [] or case.name in KILLING


def test_what_is_left_out():
    for env in (UnixEnv, ShmEnv):
        assert {case.name for case in skipped_for(env())} == NOT_DETERMINISTIC
