from __future__ import annotations

import pytest

from ..tiers import uses
from .kafka import Java, find_java


@pytest.fixture(scope="session")
@uses("jvm")
def java(request: pytest.FixtureRequest) -> Java:
    """Kafka's own programs."""
    assert request.config.cache is not None
    return find_java(request.config.cache)
