"""The promises of every transport, as named cases that a plugin's author runs over it. Needs no pytest.

    class MyEnv(Env):
        transport = MyTransport()
        def listen_url(self): return "my://127.0.0.1:0"
        ...

    for case in cases_for(MyEnv()):
        trio.run(run_case, case, MyEnv())

or, with pytest-trio, parametrize a test over `cases_for(env)`, by `case.name`, and `await run_case(case, env)`.
"""

from __future__ import annotations

from .kit._frame import Case, Env, Needs, cases_for, run_case, skipped_for
from .verdicts import BenchError, NotTestedWarning

__all__ = ["BenchError", "Case", "Env", "Needs", "NotTestedWarning", "cases_for", "run_case", "skipped_for"]
