"""What holds for all tests."""

from hypothesis import HealthCheck, settings

# How long an example takes tells of the machine, not of the code: time is measured in `tests/bench`.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")
