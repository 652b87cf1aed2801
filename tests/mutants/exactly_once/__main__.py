"""`python -m tests.mutants.exactly_once`: which planted errors are noticed, by what, at what seed?"""

from __future__ import annotations

import sys

from ..worlds import main

if __name__ == "__main__":
    sys.exit(main("exactly_once"))
