"""ACLs, of which a listener says that there are none, and what has settings: request by request at a real node."""

from __future__ import annotations

from pathlib import Path

import pytest

from insync.plugins.kafka.protocol import message
from insync.plugins.kafka.protocol.apis import Api, KafkaError

from .test_listener import client_of, make, node_at

Describe, Create, Delete = map(message, ("DescribeAclsRequest", "CreateAclsRequest", "DeleteAclsRequest"))
Listing = message("ListConfigResourcesRequest")


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize(
    ("allow", "error"),
    [((), KafkaError.SECURITY_DISABLED), (("client=consume",), KafkaError.CLUSTER_AUTHORIZATION_FAILED)],
)
async def test_acls_are_refused_each_by_itself(
    tmp_path: Path, version: int, allow: tuple[str, ...], error: int
) -> None:
    more = {"allow": allow} if allow else {}
    async with node_at(tmp_path, **more) as node, client_of(node) as client:
        answer = await client.ask(Api.DESCRIBE_ACLS, version, Describe(resource_type_filter=1))
        assert (answer.error_code, answer.resources) == (error, [])
        wanted = [Create.AclCreation(resource_name=name, principal="User:x", host="*") for name in "ab"]
        answer = await client.ask(Api.CREATE_ACLS, version, Create(creations=wanted))
        assert [each.error_code for each in answer.results] == [error] * 2
        answer = await client.ask(Api.DELETE_ACLS, version, Delete(filters=[Delete.DeleteAclsFilter()] * 2))
        assert [(each.error_code, each.matching_acls) for each in answer.filter_results] == [(error, [])] * 2


async def test_topics_and_nodes_have_settings(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node, "one")

        async def listed(*kinds: int, version: int = 1) -> list[tuple[int, str]] | int:
            asked = Listing(resource_types=list(kinds))
            answer = await client.ask(Api.LIST_CONFIG_RESOURCES, version, asked)
            found = [(each.resource_type, each.resource_name) for each in answer.config_resources]
            return answer.error_code or found

        assert await listed() == [(2, "one"), (4, "1")]
        assert await listed(2) == [(2, "one")]
        assert await listed(4, 16) == [(4, "1")]
        assert await listed(version=0) == []
        assert await listed(2, 99) == KafkaError.UNSUPPORTED_VERSION


@pytest.mark.parametrize(("may", "is_let"), [("consume", False), ("admin", True)])
async def test_log_directories_are_for_admins(tmp_path: Path, may: str, is_let: bool) -> None:
    async with node_at(tmp_path, allow=(f"client={may}",)) as node, client_of(node) as client:
        told = await client.ask(Api.DESCRIBE_LOG_DIRS, 4, message("DescribeLogDirsRequest")(topics=None))
        found = [each.log_dir for each in told.results]
    assert found == ([str(tmp_path / "n1")] if is_let else [])
    assert told.error_code == (0 if is_let else KafkaError.CLUSTER_AUTHORIZATION_FAILED)


async def test_what_has_settings_is_for_admins(tmp_path: Path) -> None:
    async with node_at(tmp_path, allow=("client=consume",)) as node, client_of(node) as client:
        answer = await client.ask(Api.LIST_CONFIG_RESOURCES, 1, Listing())
        assert answer.error_code == KafkaError.CLUSTER_AUTHORIZATION_FAILED
        assert answer.config_resources == []
