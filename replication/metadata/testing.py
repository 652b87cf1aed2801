"""The conformance kit of metadata stores: one case for each promise of the interface.

A store's author subclasses `Bench` and runs every case, with pytest for example:

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
    async def test_conformance(case: Case) -> None:
        await case.run(MyBench())

The kit needs trio alone, no test framework.
"""

from ...transport.verdicts import BenchError, NotTestedWarning
from ..promises import PromiseBrokenError
from .kit import _changes, _failures, _identity, _sessions, _transactions, _watches
from .kit._frame import Bench, Case

CASES: tuple[Case, ...] = (
    *_transactions.CASES,
    *_sessions.CASES,
    *_watches.CASES,
    *_changes.CASES,
    *_identity.CASES,
    *_failures.CASES,
)
"""Every case, one promise each."""

__all__ = ["CASES", "Bench", "BenchError", "Case", "NotTestedWarning", "PromiseBrokenError"]
