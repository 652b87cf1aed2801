"""Passwords as they are kept: salted, hashed many times, and never themselves (RFC 5802, RFC 7677).

The kept credential lets a node check somebody who knows the password, by the password (`is_password`) or by a proof
(`is_proof`); nobody can log in with the credential. Kafka keeps the same (KIP-84, KIP-554), without SASLprep.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping

import attrs

SCRAM_SHA_256 = "SCRAM-SHA-256"
SCRAM_SHA_512 = "SCRAM-SHA-512"
HASHES: Mapping[str, str] = {SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"}
"""By mechanism, the name of its hash function."""
LEAST_ITERATIONS, MOST_ITERATIONS = 4096, 16384
"""Kafka's bounds: below, a stolen hash is guessed too soon; above, a login costs the node too much."""
ITERATIONS = 8192
LEAST_SALT, MOST_SALT = 8, 128
SALT_BYTES = 16
"""Of the salts that our own clients draw."""
LONGEST_PASSWORD = 1024
"""Bytes."""
_DIGITS = b"0123456789abcdefghijklmnopqrstuvwxyz"
_KAFKAS_BITS = 130
"""Kafka's clients in Java write a number of so many bits with these digits, and take its characters as the salt."""


@attrs.frozen(kw_only=True)
class ScramCredential:
    """The kept form of a password for one mechanism. Its bytes are secrets: no log and no answer has them."""

    iterations: int
    salt: bytes = attrs.field(repr=False)
    stored_key: bytes = attrs.field(repr=False)
    server_key: bytes = attrs.field(repr=False)


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """RFC 5802's `SaltedPassword`; takes some milliseconds."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


def credential(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """The credential of a password that was salted already."""
    return ScramCredential(
        iterations=iterations,
        salt=salt,
        stored_key=_hash(mechanism, _hmac(mechanism, salted, b"Client Key")),
        server_key=_hmac(mechanism, salted, b"Server Key"),
    )


def derive(mechanism: str, password: str, salt: bytes, iterations: int = ITERATIONS) -> ScramCredential:
    """The credential of a password. salt: random bytes, drawn for this credential alone."""
    return credential(mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations)


def is_password(mechanism: str, kept: ScramCredential, password: str) -> bool:
    """Whether a credential was made of this password; takes as long if it was not."""
    try:
        is_sound = len(password.encode()) <= LONGEST_PASSWORD
    except UnicodeEncodeError:
        is_sound = False
    made = derive(mechanism, password if is_sound else "", kept.salt, kept.iterations)
    return hmac.compare_digest(made.stored_key, kept.stored_key) and is_sound


def is_proof(mechanism: str, kept: ScramCredential, proof: bytes, exchange: bytes) -> bool:
    """Whether a proof was made by who knows the password. exchange: RFC 5802's `AuthMessage`."""
    signature = _hmac(mechanism, kept.stored_key, exchange)
    if len(proof) != len(signature):
        return False
    client_key = bytes([left ^ right for left, right in zip(proof, signature, strict=True)])
    return hmac.compare_digest(_hash(mechanism, client_key), kept.stored_key)


def signature(mechanism: str, kept: ScramCredential, exchange: bytes) -> bytes:
    """By which the client sees that the node knows its credential: RFC 5802's `ServerSignature`."""
    return _hmac(mechanism, kept.server_key, exchange)


def made_up(
    mechanism: str, name: str, secret: bytes, known: Iterable[tuple[str, ScramCredential]] = ()
) -> tuple[str, ScramCredential]:
    """For a user that does not exist: it looks like one of those that do, and no password fits it.

    A name gets the same one as long as nobody is added or changed, and mostly then, too. Of many names, as many get
    an iteration count, a length of the salt and a mechanism as of the known ones have them.

    Args:
      mechanism: If nobody is known.
      secret: Only the nodes know it, and all of them know the same, or the salt would tell that it is made up.
      known: Mechanisms and credentials of the users.
    """
    forms = sorted((each, kept.iterations, len(kept.salt), _is_kafkas(kept.salt)) for each, kept in known)
    form, salt, stored, server = (
        _hmac(mechanism, secret, f"{part} {mechanism} {name}".encode("utf-8", "surrogatepass"))
        for part in ("form", "salt", "stored key", "server key")
    )
    iterations, size, is_kafkas = ITERATIONS, SALT_BYTES, False
    if forms:
        place = int.from_bytes(form[:8]) * len(forms) >> 64
        mechanism, iterations, size, is_kafkas = forms[place]
    drawn = hashlib.shake_256(salt).digest(max(size, 32))
    return mechanism, ScramCredential(
        iterations=iterations,
        salt=_kafkas(drawn) if is_kafkas else drawn[:size],
        stored_key=stored,
        server_key=server,
    )


def _is_kafkas(salt: bytes) -> bool:
    return 20 <= len(salt) <= 26 and not salt.strip(_DIGITS)


def _kafkas(drawn: bytes) -> bytes:
    number, salt = int.from_bytes(drawn) % (1 << _KAFKAS_BITS), b""
    while number:
        number, digit = divmod(number, len(_DIGITS))
        salt = _DIGITS[digit : digit + 1] + salt
    return salt


def _hash(mechanism: str, data: bytes) -> bytes:
    return hashlib.new(HASHES[mechanism], data).digest()


def _hmac(mechanism: str, key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, HASHES[mechanism])
