"""`insync user`: who may log in, and what each may do."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Annotated, Literal, TextIO

from cyclopts import App, Parameter

from .clusters import Flag, Json, Servers, known, print_json, say
from .errors import UsageError

Operation = Literal["produce", "consume", "admin"]
Mechanism = Literal["SCRAM-SHA-256", "SCRAM-SHA-512"]
PasswordFile = Annotated[Path | None, Parameter(show_default=False, allow_leading_hyphen=True)]
_BOTH: tuple[Mechanism, ...] = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_LONGEST = 1026
"""Characters of a line: a password that is too long, with its line end, is refused and not cut."""

app = App(
    name="user",
    help="Create, list, change and delete the users of the cluster, who log in by name and password.",
    help_format="markdown",
)


@app.command
def create(
    name: str,
    /,
    *,
    allow: Annotated[tuple[Operation, ...], Parameter(show_default=False)] = (),
    password_file: PasswordFile = None,
    mechanism: Annotated[tuple[Mechanism, ...], Parameter(show_default="both")] = (),
    iterations: int = 8192,
    servers: Servers = "",
) -> int:
    """Create a user. The password is asked for, or read from a file or a pipe; the cluster keeps a salted hash.

    Example: `insync user create etl --allow produce --allow consume --password-file etl.password`

    Parameters
    ----------
    allow
        What the user may do, repeatable: a rule `client/NAME=...` on every node, beside the nodes' own. Without it
        the nodes' rules alone say so.
    password_file
        Its first line is the password; `-` for standard input.
    mechanism
        By which the user may log in, repeatable.
    iterations
        How often the password is hashed, 4096 to 16384.
    """
    from .running import run

    at, password = known(servers), _password(password_file, name)

    async def create_it() -> None:
        from ..client import Admin

        async with Admin(at) as admin:
            await admin.create_user(
                name, password, allow=allow or None, mechanisms=mechanism or _BOTH, iterations=iterations
            )
        say(f"created user {name}")

    return run(create_it)


@app.command(name="list")
def list_(*, servers: Servers = "", json: Json = False) -> int:
    """List the users, with what each may do and how it may log in.

    Example: `insync user list`
    """
    from .running import run

    async def list_them() -> None:
        from ..client import Admin

        async with Admin(known(servers)) as admin:
            found = await admin.list_users()
        if json:
            print_json(
                [{"name": each.name, "allow": each.allow, "mechanisms": each.mechanisms} for each in found]
            )
            return
        for each in found:
            may = "what the nodes' rules allow" if each.allow is None else "+".join(each.allow) or "nothing"
            logins = ", ".join(f"{mechanism} ({count})" for mechanism, count in each.mechanisms.items())
            say(f"{each.name}: may {may}; logs in by {logins}")
        if not found:
            say("no users yet; see: insync user create --help")

    return run(list_them)


@app.command
def alter(
    name: str,
    /,
    *,
    allow: Annotated[tuple[Operation, ...], Parameter(show_default=False)] = (),
    allow_any: Flag = False,
    password: Flag = False,
    password_file: PasswordFile = None,
    mechanism: Annotated[tuple[Mechanism, ...], Parameter(show_default="both")] = (),
    iterations: int = 8192,
    servers: Servers = "",
) -> int:
    """Change the password of a user, or what the user may do. Values that are not given stay as they are.

    Example: `insync user alter etl --password`

    Parameters
    ----------
    allow
        What the user may do from now on, repeatable.
    allow_any
        Remove this user's rule: then only the nodes' rules apply.
    password
        Ask for a new password, or read it from a pipe.
    password_file
        The first line is the new password; `-` for standard input.
    mechanism
        By which the user may log in with the new password, repeatable.
    iterations
        How often the new password is hashed, 4096 to 16384.
    """
    from .running import run

    if allow and allow_any:
        raise UsageError("give --allow or --allow-any, not both")
    changes_password = password or password_file is not None
    if not (allow or allow_any or changes_password):
        raise UsageError(f"say what to change: insync user alter {name} --password, or --allow OPERATION")
    at = known(servers)
    new = _password(password_file, name) if changes_password else None

    async def alter_it() -> None:
        from ..client import Admin

        async with Admin(at) as admin:
            await admin.alter_user(
                name,
                password=new,
                allow="any" if allow_any else allow or None,
                mechanisms=mechanism or _BOTH,
                iterations=iterations,
            )
        say(f"changed user {name}")

    return run(alter_it)


@app.command
def delete(name: str, /, *, servers: Servers = "") -> int:
    """Delete a user. Its open connections lose all rights at once.

    Example: `insync user delete etl`
    """
    from .running import run

    async def delete_it() -> None:
        from ..client import Admin

        async with Admin(known(servers)) as admin:
            await admin.delete_user(name)
        say(f"deleted user {name}")

    return run(delete_it)


def _password(file: Path | None, name: str) -> str:
    """From a file, from standard input, or by asking; never from the command line, which others can read."""
    if file is not None and str(file) != "-":
        with file.open(encoding="utf-8") as opened:
            return _first_line(opened, str(file))
    if file is None and sys.stdin.isatty():
        password = getpass.getpass(f"password for {name}: ")
        if password != getpass.getpass("again: "):
            raise UsageError("the two passwords differ: nothing was changed")
        return _line(password, "what you typed")
    return _first_line(sys.stdin, "standard input")


def _first_line(source: TextIO, where: str) -> str:
    try:
        return _line(source.readline(_LONGEST), where)
    except UnicodeDecodeError:
        # Not chained: that error holds the bytes, which may be a password.
        raise UsageError(f"{where} is not UTF-8: write the password as UTF-8 text") from None


def _line(text: str, where: str) -> str:
    password = text.removesuffix("\n").removesuffix("\r")
    if not password:
        raise UsageError(
            f"{where} has no password in its first line: run the command in a terminal to be asked for it, "
            "pipe it in, or name a file with --password-file"
        )
    return password
