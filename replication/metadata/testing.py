"""The conformance kit of metadata stores: one case for each promise of the interface.

A store's author subclasses `Bench` and runs every case, with pytest for example:

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
    async def test_conformance(case: Case) -> None:
        await case.run(MyBench())

The kit needs trio alone, no test framework.
"""

from ..promises import PromiseBrokenError
from .kit import _changes as _kit_changes
from .kit import _failures as _kit_failures
from .kit import _identity as _kit_identity
from .kit import _sessions as _kit_sessions
from .kit import _transactions as _kit_transactions
from .kit import _watches as _kit_watches
from .kit._frame import Bench, Case

CASES: tuple[Case, ...] = (
    *_kit_transactions.CASES,
    *_kit_sessions.CASES,
    *_kit_watches.CASES,
    *_kit_changes.CASES,
    *_kit_identity.CASES,
    *_kit_failures.CASES,
)
"""Every case, one promise each."""

__all__ = ["CASES", "Bench", "Case", "PromiseBrokenError"]
