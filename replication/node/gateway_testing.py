"""The conformance kit of gateways: one case for each promise of the interface, against a real node.

A gateway's author subclasses `GatewayBench` and runs every case, with pytest for example:

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
    async def test_conformance(case: Case) -> None:
        await case.run(MyBench())

The kit needs trio alone, no test framework. It is meant for TCP and what is like it: a client is a socket.
"""

from ...transport.verdicts import BenchError, NotTestedWarning
from ..promises import PromiseBrokenError
from .gateways.kit import CASES, Case, GatewayBench

__all__ = ["CASES", "BenchError", "Case", "GatewayBench", "NotTestedWarning", "PromiseBrokenError"]
