"""Hosts of their own for the nodes: network namespaces on one bridge, with packets dropped one way at will."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import attrs

OURS = 254
"""Host number of the harness itself, and of what runs beside it, such as a ZooKeeper server."""


class CannotIsolateError(Exception):
    """Network namespaces cannot be made here; the text says why."""


def _run(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=check, capture_output=True, text=True)


@attrs.frozen(slots=False)
class Network:
    """A subnet with one namespace for each node, named by its number."""

    name: str
    prefix: str
    numbers: tuple[int, ...]

    def address(self, number: int) -> str:
        return f"{self.prefix}.{number}"

    def namespace(self, number: int) -> str:
        return f"{self.name}n{number}"

    def command(self, number: int) -> list[str]:
        """What stands before a command line to have it run on that host; the process keeps its id."""
        return ["ip", "netns", "exec", self.namespace(number)]

    def cut(self, source: int, target: int) -> None:
        """Drop what `source` sends to `target`, where it arrives. The harness and stores count as `OURS`."""
        if target == OURS:
            self._rule(source, "out", f"ip daddr {self.address(target)} drop")
        else:
            self._rule(target, "in", f"ip saddr {self.address(source)} drop")

    def lose(self, source: int, target: int, percent: int) -> None:
        """Drop `percent` of a hundred packets from `source` to `target`, at random, where they arrive."""
        rule = f"ip saddr {self.address(source)} numgen random mod 100 < {percent} counter drop"
        self._rule(target, "in", rule)

    def lost(self) -> int:
        """How many packets `lose` has dropped since the last `heal`."""
        lists = [
            _run(*self.command(number), "nft", "list", "chain", "ip", "chaos", "in")
            for number in self.numbers
        ]
        return sum(
            int(count) for each in lists for count in re.findall(r"counter packets (\d+)", each.stdout)
        )

    def spoil(self, number: int, how: str) -> bool:
        """Have the kernel's netem treat what a node sends; False if this kernel has no netem."""
        return _run(*self._qdisc("add", number), "netem", *how.split(), check=False).returncode == 0

    def unspoil(self, number: int) -> int:
        """End that; how many packets were dropped."""
        told = _run("tc", "-n", self.namespace(number), "-s", "qdisc", "show", "dev", "e0").stdout
        _run(*self._qdisc("del", number))
        return sum(int(count) for count in re.findall(r"dropped (\d+)", told))

    @cached_property
    def has_netem(self) -> bool:
        """Whether `spoil` can do anything; a module of the kernel that no package brings."""
        number = self.numbers[0]
        found = self.spoil(number, "delay 0ms")
        if found:
            self.unspoil(number)
        return found

    def _qdisc(self, do: str, number: int) -> list[str]:
        return ["tc", "-n", self.namespace(number), "qdisc", do, "dev", "e0", "root"]

    def heal(self) -> None:
        """End all cuts and losses."""
        for number in self.numbers:
            for chain in ("in", "out"):
                _run(*self.command(number), "nft", "flush", "chain", "ip", "chaos", chain)

    def is_cut(self, source: int, target: int, port: int) -> bool:
        """Whether a connection from `source` to a port of `target` that is listened at gets no answer."""
        probe = f"exec 3<>/dev/tcp/{self.address(target)}/{port}"
        where = [] if source == OURS else self.command(source)
        return _run(*where, "timeout", "0.5", "bash", "-c", probe, check=False).returncode == 124

    def _rule(self, number: int, chain: str, rule: str) -> None:
        _run(*self.command(number), "nft", "add", "rule", "ip", "chaos", chain, *rule.split())

    def _make(self) -> None:
        bridge = self.name
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "addr", "add", f"{self.address(OURS)}/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        for number in self.numbers:
            namespace, outer = self.namespace(number), f"{self.name}v{number}"
            _run("ip", "netns", "add", namespace)
            _run("ip", "link", "add", outer, "type", "veth", "peer", "name", "e0", "netns", namespace)
            _run("ip", "link", "set", outer, "master", bridge, "up")
            _run("ip", "-n", namespace, "addr", "add", f"{self.address(number)}/24", "dev", "e0")
            for device in ("e0", "lo"):
                _run("ip", "-n", namespace, "link", "set", device, "up")
            nft = [*self.command(number), "nft", "add"]
            _run(*nft, "table", "ip", "chaos")
            for chain, hook in (("in", "input"), ("out", "output")):
                _run(*nft, "chain", "ip", "chaos", chain, f"{{ type filter hook {hook} priority 0 ; }}")

    def _remove(self) -> None:
        for number in self.numbers:
            # The kernel takes its time to remove what lies in a namespace: its name may be wanted again at once.
            _run("ip", "link", "del", f"{self.name}v{number}", check=False)
            _run("ip", "netns", "del", self.namespace(number), check=False)
        _run("ip", "link", "del", self.name, check=False)


@contextmanager
def network(numbers: tuple[int, ...]) -> Iterator[Network]:
    """Make the hosts, and remove them whatever happens.

    Raises:
      CannotIsolateError: Not root, or a tool is missing, or the kernel refuses.
    """
    made = Network(f"ic{os.getpid()}", f"10.77.{os.getpid() % 250}", numbers)
    try:
        try:
            made._make()
        except FileNotFoundError as error:
            raise CannotIsolateError(
                f"{error.filename} is missing (packages iproute2 and nftables)"
            ) from error
        except subprocess.CalledProcessError as error:
            raise CannotIsolateError(f"{' '.join(error.cmd)}: {error.stderr.strip()}") from error
        yield made
    finally:
        made._remove()
