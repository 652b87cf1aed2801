"""Access control lists, of which there are none: rules are those of nodes and of users.

Tools take SECURITY_DISABLED for a cluster without an authoriser, as Kafka answers where none is configured; an API
that is not offered is an error to them.
"""

from __future__ import annotations

from insync.replication.node.requests.authorisation import Operation

from ..client import NOT_ALLOWED, Client
from ..protocol import Struct, message
from ..protocol.apis import Api, KafkaError
from .table import Offer

_Described, _Created, _Deleted = map(
    message, ("DescribeAclsResponse", "CreateAclsResponse", "DeleteAclsResponse")
)
_WHY = "ACLs are not supported: set rules for the nodes (`allow`) or for users (`insync user alter --allow`)"


def _refusal(client: Client) -> tuple[int, str]:
    if client.may(Operation.ADMIN):
        return KafkaError.SECURITY_DISABLED, _WHY
    return KafkaError.CLUSTER_AUTHORIZATION_FAILED, NOT_ALLOWED


async def describe(client: Client, request: Struct, version: int) -> Struct:
    """There are none, whatever is looked for."""
    error, text = _refusal(client)
    answer: Struct = _Described(error_code=error, error_message=text)
    return answer


async def create(client: Client, request: Struct, version: int) -> Struct:
    """None is made; each is refused by itself."""
    error, text = _refusal(client)
    made = _Created.AclCreationResult
    answer: Struct = _Created(results=[made(error_code=error, error_message=text) for _ in request.creations])
    return answer


async def delete(client: Client, request: Struct, version: int) -> Struct:
    """None is deleted; each filter is refused by itself."""
    error, text = _refusal(client)
    made = _Deleted.DeleteAclsFilterResult
    answer: Struct = _Deleted(
        filter_results=[made(error_code=error, error_message=text) for _ in request.filters]
    )
    return answer


OFFERS = (
    Offer(Api.DESCRIBE_ACLS, 1, 3, describe),
    Offer(Api.CREATE_ACLS, 1, 3, create),
    Offer(Api.DELETE_ACLS, 1, 3, delete),
)
