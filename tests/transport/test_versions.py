import pytest

from insync.transport.versions import misfit


@pytest.mark.parametrize("fits", [(1, 0), (1, 2), [1, 1]])
def test_same_major_and_no_later_minor_fit(fits):
    assert misfit(fits, (1, 2)) == ""


@pytest.mark.parametrize("version", [(1, 3), (2, 0), (0, 2)])
def test_another_major_and_a_later_minor_do_not(version):
    assert f"is written for version {version[0]}.{version[1]} of the interface, this is 1.2" in misfit(
        version, (1, 2)
    )


@pytest.mark.parametrize("odd", ["1.0", None, (1,), (1, "0"), (1, 0, 0), "10"])
def test_what_is_no_version_is_shown(odd):
    assert misfit(odd, (1, 2)) == f"has api_version={odd!r}: write two numbers, (1, 2)"
