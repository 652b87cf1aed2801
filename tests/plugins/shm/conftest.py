import tempfile

import pytest


@pytest.fixture
def folder():
    """A short one: pytest's own is too long for the path of a socket."""
    with tempfile.TemporaryDirectory() as path:
        yield path
