import itertools

import pytest

from insync.transport._memory import MemoryTransport
from insync.transport.testing import Env, cases_for, run_case


class MemoryEnv(Env):
    transport = MemoryTransport()
    _numbers = itertools.count()

    def listen_url(self):
        return f"mem://kit/listener-{next(self._numbers)}"

    def dead_url(self):
        return "mem://kit/nobody"

    def malformed_urls(self):
        return ["mem://", "mem://net", "mem://net/", "mem:///name"]


@pytest.mark.parametrize("case", cases_for(MemoryEnv()), ids=lambda case: case.name)
async def test_memory(case):
    await run_case(case, MemoryEnv())
