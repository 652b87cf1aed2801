"""ApiVersions: what is offered, in an answer that every client can read."""

from __future__ import annotations

import re

from insync.replication.core.errors import ErrorCode

from ..client import Client
from ..core.connection import Request
from ..protocol import MalformedError, Struct, decode, message
from ..protocol.apis import Api, KafkaError
from . import fetch, produce
from .table import Offer

LEAST, MOST = 0, 5
_Request, _Response = message("ApiVersionsRequest"), message("ApiVersionsResponse")
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_NAMED_SINCE, _FROM_ZERO_SINCE, _CLUSTER_SINCE = 3, 4, 5
FEATURES = {"group.version": (0, 1), "transaction.version": (0, 2)}
"""The cluster's features that clients ask for by name, from which level to which (KIP-848, KIP-890, KIP-1022)."""


class Offers:
    """All that a listener serves: which versions, and which of them have tagged headers."""

    def __init__(self, offers: dict[int, Offer]) -> None:
        ranges = {api: (offer.least, offer.most) for api, offer in offers.items()}
        ranges[Api.PRODUCE] = produce.LEAST, produce.MOST
        ranges[Api.FETCH] = fetch.LEAST, fetch.MOST
        ranges[Api.API_VERSIONS] = LEAST, MOST
        self.ranges = dict(sorted(ranges.items()))
        self._flexible = {api: message(f"{_name(api)}Request").TABLE.flexible for api in ranges}

    def has(self, api: int, version: int) -> bool:
        """Whether a version of an API is served."""
        found = self.ranges.get(api)
        return found is not None and found[0] <= version <= found[1]

    def is_flexible(self, api: int, version: int) -> bool:
        """Whether the headers of a version have tagged fields."""
        return version in self._flexible[api]

    def listed(self) -> list[Struct]:
        """As an answer has them. Produce is shown from 0: older librdkafka looks for that before it compresses."""
        return [
            _Response.ApiVersion(
                api_key=api, min_version=0 if api == Api.PRODUCE else least, max_version=most
            )
            for api, (least, most) in self.ranges.items()
        ]


def _name(api: int) -> str:
    from ..protocol import message_of

    found = message_of(api, is_request=True)
    assert found is not None, f"no table has API {api}"
    return found.TABLE.name.removesuffix("Request")


def answer(client: Client, request: Request, offers: Offers) -> tuple[Struct, int]:
    """The answer, and the version to write it in: the lowest, if that of the request is not known."""
    version = request.version
    if not LEAST <= version <= MOST:
        return _Response(error_code=KafkaError.UNSUPPORTED_VERSION, api_keys=offers.listed()), 0
    asked, end = decode(_Request, version, request.body, request.position)
    if end > len(request.body):
        raise MalformedError("ApiVersions ends too early")
    told = _Response(api_keys=offers.listed())
    if version >= _NAMED_SINCE:
        names = (asked.client_software_name, asked.client_software_version)
        if not all(_SOFTWARE.fullmatch(each) for each in names):
            return _Response(error_code=ErrorCode.INVALID_REQUEST), version
        told.finalized_features_epoch = client.view.revision
        _tell_features(told, version)
    if version >= _CLUSTER_SINCE and asked.cluster_id is not None and asked.node_id >= 0:
        here = client.service.cluster_id, client.service.node_id
        if (asked.cluster_id, asked.node_id) != here:
            return _Response(error_code=KafkaError.REBOOTSTRAP_REQUIRED), version
    return told, version


def _tell_features(told: Struct, version: int) -> None:
    """Of a cluster of this release each has its highest level. Older clients take no range that begins at 0."""
    told.supported_features = [
        _Response.SupportedFeatureKey(name=name, min_version=least, max_version=most)
        for name, (least, most) in FEATURES.items()
        if least or version >= _FROM_ZERO_SINCE
    ]
    told.finalized_features = [
        _Response.FinalizedFeatureKey(name=name, min_version_level=most, max_version_level=most)
        for name, (_, most) in FEATURES.items()
    ]
