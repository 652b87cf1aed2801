"""`python -m tests.mutants.services`: which planted errors are noticed, by what, at what seed?"""

from __future__ import annotations

import sys

from ..worlds import main

if __name__ == "__main__":
    sys.exit(main("services"))
