"""`insync dashboard`: the dashboard as a command."""

from __future__ import annotations

import importlib.util
import sys
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

from ...replication.cli.clusters import Flag, Json, Servers, known, print_json, say
from ...replication.cli.errors import UsageError

Port = Annotated[int, Parameter(validator=validators.Number(gte=0, lte=65535))]
LEAST_PASSWORD = 8


def dashboard(
    *,
    servers: Servers = "",
    host: str = "127.0.0.1",
    port: Port = 8090,
    name: tuple[str, ...] = (),
    login: Flag = False,
    password_file: Annotated[Path | None, Parameter(show_default=False)] = None,
    trusted_proxy: tuple[str, ...] = (),
    hangs_after_ms: Annotated[int, Parameter(validator=validators.Number(gte=0))] = 1_200_000,
    allow_changes: Flag = False,
    stop_with_stdin: Flag = False,
    json: Json = False,
) -> int:
    """Show a cluster in the browser: nodes, topics, ISRs over time, records, what is wrong and why.

    It needs `pip install 'insync[dashboard]'`, and nothing from the internet. Until --allow-changes is given, the
    cluster can be looked at and not changed.

    Example: `insync dashboard --servers tcp://127.0.0.1:9092`

    Parameters
    ----------
    host
        Address to listen on. Off loopback one has to log in; have a proxy that speaks https before it.
    port
        0 takes a free one.
    name
        A further name by which browsers may call it, with its port if that is another one; repeatable.
    login
        Users of the cluster (`insync user`) log in, on loopback too. Those who may consume see it, those who may
        admin change what --allow-changes lets them.
    password_file
        File whose first line is a password for all, in place of the cluster's users.
    trusted_proxy
        Address or network of a proxy, which tells by X-Forwarded-For from where a request comes: one address makes
        one attempt to log in at a time. Repeatable.
    hangs_after_ms
        A transaction hangs if its producer has written nothing for so long and no coordinator will end it.
    allow_changes
        Let those who see it change the cluster: elect, move, drain, alter settings, create, delete, produce.
    stop_with_stdin
        Stop when standard input ends: for programs that start it.
    """
    missing = [each for each in ("nicegui", "uvicorn", "fastapi") if importlib.util.find_spec(each) is None]
    if missing:
        raise UsageError(f"{', '.join(missing)} cannot be found: pip install 'insync[dashboard]'")
    if stop_with_stdin:
        # Only now: the overview of all commands imports this module, and trio takes its time.
        from ...replication.cli.running import stop_when_stdin_ends

        stop_when_stdin_ends()
    nodes = known(servers)
    if login and password_file is not None:
        raise UsageError(
            "--login and --password-file: the cluster's users log in, or one password is for all"
        )
    for each in trusted_proxy:
        try:
            ip_network(each)
        except ValueError as error:
            raise UsageError(
                f"--trusted-proxy {each!r} is neither an address nor a network ({error}): write for example "
                "127.0.0.1 or 10.0.0.0/24"
            ) from error
    password = _password(password_file)
    by_users = login or (not password and host not in ("127.0.0.1", "::1", "localhost"))
    at = "127.0.0.1" if host == "localhost" else host
    return _run(
        nodes, (at, port), name, trusted_proxy, password, by_users, hangs_after_ms, allow_changes, json
    )


def _password(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        # Not chained: that error holds the bytes, which may be a password.
        raise UsageError(f"{path} is not UTF-8: write the password as UTF-8 text") from None
    password = lines[0].strip() if lines else ""
    if len(password) < LEAST_PASSWORD:
        raise UsageError(
            f"{path}: the password has {len(password)} characters; use at least {LEAST_PASSWORD}"
        )
    return password


def _run(
    nodes: str,
    place: tuple[str, int],
    further: tuple[str, ...],
    proxies: tuple[str, ...],
    password: str,
    by_users: bool,
    hangs_after_ms: int,
    allow_changes: bool,
    as_json: bool,
) -> int:
    import asyncio

    from ._login import Door, PasswordDoor, UserDoor
    from ._server import listen, serve
    from ._watcher import Watcher
    from .pages._frame import Site

    listener = listen(*place)
    at = listener.getsockname()
    url = f"http://{f'[{at[0]}]' if ':' in at[0] else at[0]}:{at[1]}/"

    def ready() -> None:
        if as_json:
            print_json({"event": "ready", "url": url, "allow_changes": allow_changes})
        else:
            say(f"the dashboard is at {url} (Ctrl-C ends it)")
        sys.stdout.flush()

    watcher = Watcher(nodes, hangs_after_ms=hangs_after_ms)
    door: Door | None = PasswordDoor(password) if password else None
    if by_users:
        door = UserDoor(lambda: watcher.admin)
    site = Site(watcher=watcher, allow_changes=allow_changes)
    asyncio.run(serve(site, listener, door=door, further_names=further, proxies=proxies, ready=ready))
    return 0
