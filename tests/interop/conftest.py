from __future__ import annotations

import pytest

from .kafka import Java, find_java


@pytest.fixture(scope="session")
def java(request: pytest.FixtureRequest) -> Java:
    """Kafka's own programs."""
    assert request.config.cache is not None
    return find_java(request.config.cache)
