import os
import pydoc
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

import insync.transport
from insync.transport import (
    AmbiguousTransportError,
    Capabilities,
    LinkTransport,
    TransportError,
    UnknownSchemeError,
    VersionMismatchError,
    registry,
    schemes,
)
from insync.transport._memory import MemoryTransport
from insync.transport.registry import GROUP


class OtherTransport(MemoryTransport):
    schemes = ("mem", "other")


class Unfinished(LinkTransport):
    """Its author has forgotten to write `listen`."""

    schemes = ("unfinished",)
    caps = Capabilities()

    def parse(self, url):
        return url

    async def connect(self, endpoint):
        raise AssertionError


class Misspelt(MemoryTransport):
    schemes = ("mispelt",)


class FutureTransport(MemoryTransport):
    schemes = ("future",)
    api_version = (1, 99)


@pytest.fixture
def installed(monkeypatch):
    """Entry points as if they were installed: what the test puts into the dict."""
    offers = {}
    monkeypatch.setattr(registry, "_installed", offers)
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(registry, "_instances", {})
    return offers


def offer(name, value):
    return EntryPoint(name, value, GROUP)


def test_an_installed_transport_is_loaded_when_asked_for(installed):
    installed["other"] = [offer("other", f"{__name__}:OtherTransport")]
    assert type(registry.get("other")) is OtherTransport
    assert registry.get("other") is registry.get("other")


def test_an_unknown_scheme_names_those_that_are_installed(installed):
    installed["broken"] = [offer("broken", "no.such.module:X")]
    with pytest.raises(UnknownSchemeError, match="installed: broken, mem"):
        registry.resolve("nope://x")
    assert schemes() == ["broken", "mem"]


def test_two_offers_of_one_scheme_are_ambiguous(installed):
    installed["x"] = [offer("x", "a:A"), offer("x", "b:B")]
    with pytest.raises(AmbiguousTransportError, match=r"a:A.*b:B"):
        registry.get("x")


def test_a_transport_that_cannot_be_loaded_does_not_hurt_others(installed):
    installed["broken"] = [offer("broken", "no.such.module:X")]
    with pytest.raises(TransportError, match=r"broken://.*no\.such\|No module named|cannot be loaded"):
        registry.get("broken")
    assert type(registry.get("mem")) is MemoryTransport


def test_another_version_of_the_interface_is_refused(installed):
    installed["future"] = [offer("future", f"{__name__}:FutureTransport")]
    with pytest.raises(VersionMismatchError, match=r"1\.99.*1\.0"):
        registry.get("future")
    with pytest.raises(VersionMismatchError):
        registry.register("future", FutureTransport)


@pytest.mark.parametrize(
    ("name", "telling"),
    [
        ("Unfinished", r"unfinished://.*Unfinished.*cannot be used: TypeError.*listen"),
        ("Misspelt", r"misspelt://.*Misspelt.*schemes=\('mispelt',\): name 'misspelt' there"),
        ("offer", r"offer://.*not a subclass of LinkTransport"),
        ("NoSuchName", r"nosuchname://.*NoSuchName.*cannot be loaded: AttributeError"),
    ],
)
def test_what_is_no_transport_is_refused_by_name(installed, name, telling):
    installed[name.lower()] = [offer(name.lower(), f"{__name__}:{name}")]
    with pytest.raises(TransportError, match=telling):
        registry.get(name.lower())


def test_an_unknown_scheme_is_compared_with_those_that_are_known(installed):
    with pytest.raises(UnknownSchemeError, match="did you mean mem://"):
        registry.get("men")


def test_what_is_taken_is_replaced_only_on_purpose(installed):
    with pytest.raises(AmbiguousTransportError, match="override=True"):
        registry.register("mem", OtherTransport)
    registry.register("mem", OtherTransport, override=True)
    assert type(registry.get("mem")) is OtherTransport


def test_a_third_party_package_is_found_by_its_metadata(tmp_path):
    """In a process of its own: a distribution that is nothing but a folder on the path."""
    folder = tmp_path / "third-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: third\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[{GROUP}]\nthird = third_transport:ThirdTransport\n")
    (tmp_path / "third_transport.py").write_text(
        "from insync.transport import LinkTransport\n"
        "from insync.transport._memory import MemoryTransport\n"
        "class ThirdTransport(MemoryTransport):\n    schemes = ('third',)\n"
    )
    code = "from insync.transport import registry; print(registry.resolve('third://net/x')[1])"
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stdout == "third://net/x\n", done.stderr


def test_help_is_an_index_of_what_there_is():
    """Who writes a plugin begins with help(insync.transport): it fits three pages, and no name is missing."""
    shown = pydoc.render_doc(insync.transport, renderer=pydoc.plaintext)
    assert len(shown.splitlines()) < 300
    public = {name for name in vars(insync.transport) if not name.startswith("_")}
    modules = {name for name in public if isinstance(getattr(insync.transport, name), type(pydoc))}
    assert not {name for name in public - modules if f"`{name}`" not in shown}
