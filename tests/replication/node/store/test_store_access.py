"""Who may use a metadata store that is served: nodes, and whom a rule names; nobody from afar without a proof."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from insync.replication import Node, NodeSettings
from insync.replication.metadata import (
    STORE_KINDS,
    Committed,
    MemoryStore,
    MetadataStore,
    Put,
    RemoteStore,
    StoreRefusedError,
    open_store,
    serve_store,
)
from insync.replication.metadata.remote_store.serving import nodes_only
from insync.replication.node.requests.authorisation import Authoriser
from insync.transport import (
    Authorise,
    Identity,
    InsecureAddressError,
    PeerIdentity,
    Security,
    TlsFiles,
)
from tests.plugins.tcp.certificates import Authority

NODE = Identity(node_id=7)
SECRET = b"a secret of sixteen bytes or more"


@asynccontextmanager
async def served(
    url: str, *, security: Security | None = None, authorise: Authorise = nodes_only
) -> AsyncIterator[str]:
    """A store in memory at `url`; gives where it is reached."""
    async with MemoryStore() as inner, trio.open_nursery() as nursery:
        start = partial(serve_store, inner, url, security=security, authorise=authorise)
        serving = await nursery.start(start)
        yield serving.endpoints[0]
        nursery.cancel_scope.cancel()


async def write(store: MetadataStore) -> None:
    async with store:
        assert isinstance(await store.commit([], [Put("key", b"value")]), Committed)


async def test_clients_are_refused_at_once_and_nodes_let_in(caplog: pytest.LogCaptureFixture) -> None:
    async with served("tcp://127.0.0.1:0") as url:
        await write(RemoteStore(url, identity=NODE))
        refused = pytest.raises(StoreRefusedError, match=r"client may not use the metadata store.*only nodes")
        with trio.fail_after(60), caplog.at_level(logging.WARNING, "insync.transport"), refused:
            await write(open_store(f"remote+{url}", wait_seconds=600))
    warnings = [each.getMessage() for each in caplog.records if each.name.startswith("insync.transport")]
    # On a busy machine an answer may come too late and be asked for again.
    assert warnings and all("not authorised" in each for each in warnings)


@pytest.mark.parametrize(
    ("rules", "name", "may"),
    [
        ([], "", False),
        (["*=produce+consume+admin"], "", False),
        (["client=store"], "", True),
        (["client/backup=store"], "backup", True),
        (["client/backup=store"], "etl", False),
    ],
)
def test_a_rule_must_name_the_store(rules: list[str], name: str, may: bool) -> None:
    peer = PeerIdentity("c", -1, 0, "data", "mtls", name)
    ask = Authoriser(rules)
    for kind in STORE_KINDS:
        refusal = ask(peer, kind)
        assert (refusal is None) == may
        assert may or "may not use the metadata store" in str(refusal)
        assert ask(PeerIdentity("c", 3, 1, "data"), kind) is None


async def test_rules_hold_where_a_store_is_served() -> None:
    async with served("tcp://127.0.0.1:0", authorise=Authoriser(["client=store"])) as url:
        await write(RemoteStore(url))


async def test_other_machines_prove_something_or_are_not_listened_to() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with served("tcp://0.0.0.0:0"):
            pass
    assert caught.group_contains(InsecureAddressError, match="peers would not have to prove")
    async with served("tcp://0.0.0.0:0", security=Security(allow_insecure=True)):
        pass
    async with served("unix://@"):
        pass


async def test_a_secret_is_asked_for() -> None:
    async with served("tcp://127.0.0.1:0", security=Security(secret=SECRET)) as url:
        await write(RemoteStore(url, identity=NODE, security=Security(secret=SECRET)))
        for wrong in (Security(), Security(secret=SECRET[::-1])):
            with pytest.raises(StoreRefusedError, match="secret"):
                await write(RemoteStore(url, identity=NODE, security=wrong))
        with pytest.raises(StoreRefusedError):
            await write(RemoteStore(url, security=Security(secret=SECRET)))


def tls(files: TlsFiles) -> Security:
    return Security(tls=files)


async def test_certificates_say_who_is_a_node_and_who_serves(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    node, client = tls(authority.files("isr://c/7")), tls(authority.files("isr://c/client/backup"))
    own = tls(authority.files("isr://c/store"))
    async with served(
        "tls://127.0.0.1:0", security=own, authorise=Authoriser(["client/backup=store"])
    ) as url:
        await write(RemoteStore(url, identity=NODE, security=node))
        await write(RemoteStore(url, security=client))
        other = RemoteStore(url, identity=Identity(node_id=8), security=node)
        with pytest.raises(StoreRefusedError, match="certificate is for isr://c/7"):
            await write(other)
        # Who may serve a store may not use one: it is neither a node nor a client.
        with pytest.raises(StoreRefusedError, match="certificate is for isr://c/store"):
            await write(RemoteStore(url, security=own))
    async with served("tls://127.0.0.1:0", security=client) as url:
        with pytest.raises(StoreRefusedError, match="certificate is for isr://c/client/backup"):
            await write(RemoteStore(url, identity=NODE, security=node))


async def test_nodes_over_tls_use_the_store_that_one_of_them_serves(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    def settings(number: int, store: str, **more: str) -> NodeSettings:
        files = authority.files(f"isr://c/{number}")
        return NodeSettings(
            node_id=number,
            cluster_id="c",
            data_dir=tmp_path / f"n{number}",
            store=store,
            listeners=("tls://127.0.0.1:0",),
            tls_certificate=files.certificate,
            tls_key=files.key,
            tls_authorities=files.authorities,
            **more,  # type: ignore[arg-type]
        )

    first = settings(1, f"sqlite://{tmp_path}/m.db", serve_store="tls://127.0.0.1:0")
    async with Node(first) as node:
        async with Node(settings(2, node.store_url)) as second:
            assert second.cluster_id == "c"
        client = Security(tls=authority.files("isr://c/client"))
        with pytest.raises(StoreRefusedError, match="clients with a rule in `allow`"):
            await write(RemoteStore(node.store_url.removeprefix("remote+"), security=client))
