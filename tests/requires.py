"""What a test needs from outside: where it is missing the test is skipped, or fails if everything is required."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

EVERYTHING = os.environ.get("INSYNC_TEST_REQUIRE") == "all"
"""Whether nothing may be missing, as in a continuous build."""


def missing(what: str) -> NoReturn:
    """End the test because of what is not there, told by a phrase such as `no java on the path`."""
    if EVERYTHING:
        pytest.fail(f"{what}, and INSYNC_TEST_REQUIRE=all lets nothing be left out", pytrace=False)
    pytest.skip(f"not run: {what}", allow_module_level=True)
