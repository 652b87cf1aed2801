"""Addresses of sockets within one machine, which machine that is, and who may have an address."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from typing import Self

from insync.transport import URL, AddressInUseError, Endpoint
from insync.transport.urls import check_options

HOST = "host"
"""The option by which a listener says on which machine (and in which network namespace) it is."""
LONGEST = 107
"""Bytes of a socket's address, one of `sun_path` being left for the final NUL (unix(7))."""
_LOCK_SUFFIX = ".lock"
_PRIVATE = 0o600


def parse(url: URL) -> Endpoint:
    """Check `scheme:///path` or `scheme://@name`; see `LinkTransport.parse`."""
    options = check_options(url, (HOST,))
    if url.authority:
        if not url.authority.startswith("@") or url.path:
            raise ValueError(f"{url}: expected {url.scheme}:///path/of/socket or {url.scheme}://@name")
    elif len(url.path) < 2 or url.path.endswith("/"):
        raise ValueError(
            f"{url}: expected {url.scheme}:///path/of/socket, or {url.scheme}://@name without a file"
        )
    length = len(os.fsencode(url.path or url.authority))
    if length > LONGEST:
        raise ValueError(
            f"{url}: the socket's path has {length} bytes, and the system allows {LONGEST}: choose a shorter one"
        )
    return URL(url.scheme, url.authority, url.path, tuple(options.items()))


def is_abstract(endpoint: Endpoint) -> bool:
    """Whether it is a name without a file, which one network namespace has for itself."""
    return bool(endpoint.authority)


def socket_address(endpoint: Endpoint) -> str:
    """The address as the socket module takes it; "" lets the system choose an abstract name."""
    if not is_abstract(endpoint):
        return endpoint.path
    name = endpoint.authority[1:]
    return f"\0{name}" if name else ""


def contact(endpoint: Endpoint, bound: str | bytes) -> Endpoint:
    """Where peers reach a listener that asked for `endpoint` and is bound to `bound`, and from which machine."""
    authority = f"@{os.fsdecode(bound)[1:]}" if is_abstract(endpoint) else ""
    here = this_host(endpoint)
    return URL(endpoint.scheme, authority, endpoint.path, ((HOST, here),) if here else ())


def this_host(endpoint: Endpoint) -> str:
    """This boot of this machine, for abstract names with the network namespace; "" where the system does not tell.

    Processes that see the same can still be unable to reach each other (by files: in containers), so it is a hint.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip().replace("-", "")
        if not is_abstract(endpoint):
            return boot
        return f"{boot}.{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return ""


def is_here(endpoint: Endpoint) -> bool:
    """Whether a socket can be on this machine, by what its address says."""
    host = dict(endpoint.options).get(HOST)
    return host is None or host == this_host(endpoint)


class Claim:
    """A socket's path, claimed by a locked file beside it for as long as the listener lives.

    The lock goes with the process, however it ends; what it leaves behind is replaced by the next one.
    """

    def __init__(self, path: str, lock: int) -> None:
        self._path = path
        self._lock = lock

    @classmethod
    def take(cls, endpoint: Endpoint) -> Self:
        """Claim the path, and remove the socket of a process that is gone.

        Raises:
          AddressInUseError: A living process uses the path, or it is not a socket.
          OSError: The system refuses.
        """
        path = endpoint.path
        claim = cls(path, _locked(path + _LOCK_SUFFIX, endpoint))
        try:
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISSOCK(os.lstat(path).st_mode):
                    raise AddressInUseError(
                        f"{endpoint}: there is a file of another kind: choose another path",
                        peer=str(endpoint),
                    )
                os.unlink(path)
        except BaseException:
            claim.release(with_socket=False)
            raise
        return claim

    def release(self, *, with_socket: bool = True) -> None:
        """Remove the socket, then the lock."""
        if with_socket:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path + _LOCK_SUFFIX)
        os.close(self._lock)


def _locked(path: str, endpoint: Endpoint) -> int:
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _PRIVATE)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(path, lock):
                return lock
        except BlockingIOError as error:
            os.close(lock)
            raise AddressInUseError(
                f"{endpoint} is in use by another listener: stop it, or choose another path",
                peer=str(endpoint),
            ) from error
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def _is_still(path: str, lock: int) -> bool:
    """Whether the locked file is the one at the path: its former holder may just have removed it."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(lock))
    except FileNotFoundError:
        return False
