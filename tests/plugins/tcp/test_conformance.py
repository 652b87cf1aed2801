import socket

import pytest

from insync.plugins.tcp import TcpTransport
from insync.transport import URL, split_host_port
from insync.transport.testing import Env, cases_for, run_case, skipped_for


class TcpEnv(Env):
    transport = TcpTransport()

    def listen_url(self):
        return "tcp://127.0.0.1:0"

    def dead_url(self):
        return "tcp://127.0.0.1:1"

    def malformed_urls(self):
        return [
            "tcp://",
            "tcp://localhost",
            "tcp://localhost:",
            "tcp://:9000",
            "tcp://localhost:65536",
            "tcp://localhost:-1",
            "tcp://localhost:9000/path",
            "tcp://::1:9000",
        ]

    async def open_raw(self, url):
        host, port = split_host_port(URL.parse(url))
        return socket.create_connection((host, port))


NOT_DETERMINISTIC = {
    "I_the_same_seed_gives_the_same_trace",
    "I_what_is_cut_off_stays_cut_off_and_a_new_link_is_whole",
}


def test_what_is_left_out():
    assert {case.name for case in skipped_for(TcpEnv())} == NOT_DETERMINISTIC


class Tcp6Env(TcpEnv):
    def listen_url(self):
        return "tcp://[::1]:0"


@pytest.mark.parametrize("case", cases_for(TcpEnv()), ids=lambda case: case.name)
async def test_tcp(case):
    await run_case(case, TcpEnv())


@pytest.mark.parametrize(
    "case", [case for case in cases_for(Tcp6Env()) if case.name[0] in "AH"], ids=lambda case: case.name
)
async def test_tcp_over_ipv6(case):
    await run_case(case, Tcp6Env())
