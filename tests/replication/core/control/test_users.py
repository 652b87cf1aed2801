"""What is kept of passwords, and what a controller writes about users."""

from __future__ import annotations

import base64

import attrs
import pytest
from msgspec import structs

from insync.replication.core import messages as m
from insync.replication.core import scram
from insync.replication.core.control.admin_requests import (
    MOST_USERS,
    AdminRequest,
    Knowledge,
    Plan,
    Planned,
    plan,
)
from insync.replication.core.control.records import UserRecord
from insync.replication.core.control.view import ClusterView
from insync.replication.core.errors import ErrorCode
from insync.replication.core.scram import SCRAM_SHA_256, SCRAM_SHA_512

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
KEPT = {
    mechanism: scram.derive(mechanism, "pencil", SALT, scram.LEAST_ITERATIONS) for mechanism in scram.HASHES
}


def test_the_vectors_of_rfc_7677() -> None:
    """SCRAM-SHA-256 of section 3: user `user`, password `pencil`, 4096 iterations."""
    exchange = (
        b"n=user,r=rOprNGfwEbeRWgbNEkqO,"
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,"
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    )
    proof = base64.b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    kept = KEPT[SCRAM_SHA_256]
    assert scram.is_proof(SCRAM_SHA_256, kept, proof, exchange)
    assert not scram.is_proof(SCRAM_SHA_256, kept, proof, exchange + b"x")
    assert not scram.is_proof(SCRAM_SHA_256, kept, bytes([proof[0] ^ 1]) + proof[1:], exchange)
    assert not scram.is_proof(SCRAM_SHA_256, kept, proof[:-1], exchange)
    server = base64.b64decode("6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    assert scram.signature(SCRAM_SHA_256, kept, exchange) == server


@pytest.mark.parametrize("mechanism", scram.HASHES)
def test_a_password_fits_its_own_credential_alone(mechanism: str) -> None:
    kept = KEPT[mechanism]
    assert scram.is_password(mechanism, kept, "pencil")
    for wrong in ("", "Pencil", "pencil ", "\ud800"):
        assert not scram.is_password(mechanism, kept, wrong)
    assert b"pencil" not in kept.salt + kept.stored_key + kept.server_key
    assert "salt" not in repr(kept) and "key" not in repr(kept), "what is logged has no secrets"


def test_who_does_not_exist_looks_the_same_everywhere_and_nothing_fits() -> None:
    (_, one), (_, other) = (scram.made_up(SCRAM_SHA_256, "nobody", b"secret") for _ in range(2))
    assert one == other and one.iterations == scram.ITERATIONS
    assert one.salt != scram.made_up(SCRAM_SHA_256, "nobody", b"another")[1].salt
    assert one.salt != scram.made_up(SCRAM_SHA_256, "somebody", b"secret")[1].salt
    assert len(one.salt) == 16 and not scram.is_password(SCRAM_SHA_256, one, "")


def like(mechanism: str, iterations: int, salt: bytes) -> tuple[str, scram.ScramCredential]:
    kept = scram.ScramCredential(iterations=iterations, salt=salt, stored_key=b"", server_key=b"")
    return mechanism, kept


KAFKAS_SALT = b"1q2w3e4r5t6y7u8i9o0pasdfgh"


def test_who_does_not_exist_looks_like_those_who_do() -> None:
    """As many of the made-up ones have a form as of the real ones."""
    known = [like(SCRAM_SHA_256, 4096, b"\xff" * 64)] * 3 + [like(SCRAM_SHA_512, 16384, KAFKAS_SALT)]
    found = [scram.made_up(SCRAM_SHA_256, f"name {n}", b"secret", known) for n in range(2000)]
    plain = [kept for mechanism, kept in found if mechanism == SCRAM_SHA_256]
    kafkas = [kept for mechanism, kept in found if mechanism == SCRAM_SHA_512]
    assert {(kept.iterations, len(kept.salt)) for kept in plain} == {(4096, 64)}
    assert 1400 < len(plain) < 1600 and len(plain) + len(kafkas) == len(found)
    assert {kept.iterations for kept in kafkas} == {16384}
    assert {len(kept.salt) for kept in kafkas} >= {25, 26}
    assert all(int(kept.salt, 36) < 1 << 130 and kept.salt.islower() for kept in kafkas)
    assert len({kept.salt for _, kept in found}) == len(found)


def test_one_more_user_changes_few_of_those_who_do_not_exist() -> None:
    known = [like(SCRAM_SHA_256, 4096 + n, b"\xff" * 16) for n in range(2) for _ in range(50)]
    more = [*known, like(SCRAM_SHA_256, 4096, b"\xff" * 16)]
    names = [f"name {n}" for n in range(1000)]
    same = [
        scram.made_up(SCRAM_SHA_256, each, b"", known) == scram.made_up(SCRAM_SHA_256, each, b"", more)
        for each in names
    ]
    assert sum(same) > 980


def user(**changes: object) -> UserRecord:
    return structs.replace(UserRecord(name="etl", credentials=dict(KEPT)), **changes)


def asked(request: m.AlterUserRequest, *known: UserRecord) -> Planned:
    view = ClusterView(users={each.name: (each, 7) for each in known})
    knowledge = Knowledge(view=view, situation=lambda record: pytest.fail("nobody leads uncleanly here"))
    return plan(AdminRequest(request_id=1, request=request), knowledge)


def written(planned: Planned) -> UserRecord | None:
    assert isinstance(planned, Plan), planned
    (put,) = planned.puts
    assert put.key == "/users/etl"
    assert put.record is None or isinstance(put.record, UserRecord)
    return put.record


def refused(planned: Planned) -> tuple[int, str]:
    assert isinstance(planned, m.AlterUserResponse), planned
    return planned.error, planned.message


def test_a_user_is_made_once_and_a_repeated_request_is_the_same() -> None:
    request = m.AlterUserRequest(
        name="etl", credentials=dict(KEPT), allow=["consume", "produce"], expects="new"
    )
    made = written(asked(request))
    assert made == user(allow=("produce", "consume"))
    assert refused(asked(request, made))[0] == ErrorCode.NONE, "its answer was lost, and it asks again"
    another = structs.replace(request, allow=["admin"])
    code, message = refused(asked(another, made))
    assert code == ErrorCode.DUPLICATE_RESOURCE and "'etl' exists already" in message


def test_a_user_is_changed_in_what_is_said_and_nothing_else() -> None:
    known = user(allow=("produce",))
    stronger = scram.derive(SCRAM_SHA_256, "pen", SALT, 5000)
    change = m.AlterUserRequest(name="etl", credentials={SCRAM_SHA_256: stronger}, expects="known")
    assert written(asked(change, known)) == user(
        credentials={SCRAM_SHA_256: stronger, SCRAM_SHA_512: KEPT[SCRAM_SHA_512]}, allow=("produce",)
    )
    for request, allow in (
        (m.AlterUserRequest(name="etl", allow=[], expects="known"), ()),
        (m.AlterUserRequest(name="etl", any_operation=True, expects="known"), None),
    ):
        assert written(asked(request, known)) == user(allow=allow)
    without = m.AlterUserRequest(name="etl", remove=[SCRAM_SHA_512])
    assert written(asked(without, known)) == user(
        credentials={SCRAM_SHA_256: KEPT[SCRAM_SHA_256]}, allow=("produce",)
    )
    gone = m.AlterUserRequest(name="etl", remove=list(scram.HASHES), expects="known")
    assert written(asked(gone, known)) is None
    assert refused(asked(gone)) == (ErrorCode.RESOURCE_NOT_FOUND, "there is no user 'etl'")


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"name": ""}, ErrorCode.INVALID_REQUEST, "not a valid user name"),
        ({"name": "a/b"}, ErrorCode.INVALID_REQUEST, "without a slash"),
        ({"name": ".."}, ErrorCode.INVALID_REQUEST, "not a valid user name"),
        ({"name": "a\nb"}, ErrorCode.INVALID_REQUEST, "printable"),
        ({"name": "x" * 250}, ErrorCode.INVALID_REQUEST, "1 to 249"),
        ({"name": "ä" * 125}, ErrorCode.INVALID_REQUEST, "1 to 249"),
        ({"allow": ["store"]}, ErrorCode.INVALID_REQUEST, "allow='store': use produce, consume, admin"),
        ({"expects": "soon"}, ErrorCode.INVALID_REQUEST, "expects='soon'"),
        ({"credentials": {}}, ErrorCode.UNACCEPTABLE_CREDENTIAL, "needs a password"),
        (
            {"credentials": {"PLAIN": KEPT[SCRAM_SHA_256]}},
            ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            "use SCRAM",
        ),
        ({"remove": ["SCRAM-SHA-1"]}, ErrorCode.UNSUPPORTED_SASL_MECHANISM, "use SCRAM"),
        *(
            (
                {"credentials": {SCRAM_SHA_256: attrs.evolve(KEPT[SCRAM_SHA_256], **wrong)}},
                ErrorCode.UNACCEPTABLE_CREDENTIAL,
                said,
            )
            for wrong, said in (
                ({"iterations": 4095}, "4096 to 16384"),
                ({"iterations": 16385}, "4096 to 16384"),
                ({"salt": b"short"}, "a salt of 5 bytes"),
                ({"stored_key": b""}, "needs 32 each"),
                ({"server_key": b"x" * 64}, "needs 32 each"),
            )
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(changes: dict[str, object], code: ErrorCode, said: str) -> None:
    request = structs.replace(m.AlterUserRequest(name="etl", credentials=dict(KEPT)), **changes)
    found, message = refused(asked(request))
    assert found == code and said in message


def test_so_many_users_and_no_more() -> None:
    there = [user(name=f"u{number}") for number in range(MOST_USERS)]
    code, message = refused(asked(m.AlterUserRequest(name="etl", credentials=dict(KEPT)), *there))
    assert code == ErrorCode.POLICY_VIOLATION and "2000 users" in message
    change = m.AlterUserRequest(name="u7", allow=[], expects="known")
    assert isinstance(asked(change, *there), Plan)
