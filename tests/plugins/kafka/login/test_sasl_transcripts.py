"""Exchanges of unmodified clients, recorded in the run: each word of both sides is as the RFCs have it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiokafka
import kafka
import pytest

from insync.replication import BlockingAdmin

from ..programs.test_python_clients import PATIENCE
from ..programs.test_python_clients import librdkafka as librdkafka
from ..recorded import Login, check, recording
from .test_sasl import MECHANISMS, NAME, PASSWORD, as_user, secured

AWKWARD = "a=b,c ä=2C"
"""A name that clients must escape."""
RFC_7677 = Login(
    "SCRAM-SHA-256",
    (
        (
            b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
            b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        ),
        (
            b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
            b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
            b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
        ),
    ),
)


def test_the_check_accepts_the_exchange_of_the_rfc_and_no_other() -> None:
    check(RFC_7677, "user", "pencil")
    ((first, challenge), (final, verdict)) = RFC_7677.tokens
    for tokens in (
        ((first, challenge), (final, b"v=7" + verdict[3:])),
        ((first, challenge.replace(b"i=4096", b"i=4097")), (final, verdict)),
        ((first, challenge.replace(b"r=rOpr", b"r=rOps")), (final, verdict)),
        ((first.replace(b"user", b"root"), challenge), (final, verdict)),
        ((first, challenge), (final.replace(b"p=dH", b"p=eH"), verdict)),
    ):
        with pytest.raises(AssertionError):
            check(Login("SCRAM-SHA-256", tokens), "user", "pencil")
    with pytest.raises(AssertionError):
        check(Login("PLAIN", ((b"\0user\0pencil", b"\0"),)), "user", "pencil")


@pytest.mark.interop
@pytest.mark.xdist_group("kafka")
@pytest.mark.parametrize("name", [NAME, AWKWARD])
def test_librdkafka(librdkafka: Any, tmp_path: Path, name: str) -> None:
    with secured(tmp_path) as (node, given), recording(given["bootstrap.servers"]) as recorder:
        if name != NAME:
            with BlockingAdmin(node.endpoints) as admin:
                admin.create_user(name, PASSWORD)
        for mechanism in MECHANISMS:
            settings = as_user({**given, "bootstrap.servers": recorder.address}, mechanism, name)
            assert librdkafka.Producer(settings).list_topics(timeout=PATIENCE).brokers
        logins = recorder.logins()
        assert {each.mechanism for each in logins} == set(MECHANISMS)
        for login in logins:
            check(login, name, PASSWORD)


@pytest.mark.interop
@pytest.mark.xdist_group("kafka")
def test_kafka_python_and_aiokafka(tmp_path: Path) -> None:
    with secured(tmp_path) as (_, given), recording(given["bootstrap.servers"]) as recorder:
        for mechanism in MECHANISMS:
            settings = {
                "bootstrap_servers": recorder.address,
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": mechanism,
                "sasl_plain_username": NAME,
                "sasl_plain_password": PASSWORD,
            }
            kafka.KafkaProducer(**settings).close()
            count = len(recorder.logins())

            async def log_in() -> None:
                async with aiokafka.AIOKafkaProducer(**settings):  # noqa: B023
                    pass

            asyncio.run(log_in())
            assert count > 0 and len(recorder.logins()) > count
        logins = recorder.logins()
        assert {each.mechanism for each in logins} == set(MECHANISMS)
        for login in logins:
            check(login, NAME, PASSWORD)
