"""The contents of the log directories of the node that is asked (KIP-113)."""

from __future__ import annotations

from collections.abc import Sequence

from insync.replication.core import messages as m
from insync.replication.core.errors import ErrorCode
from insync.replication.node.requests.authorisation import Operation

from ..client import Client
from ..protocol import Struct, message
from ..protocol.apis import Api, KafkaError
from .table import Offer

_LogDirs = message("DescribeLogDirsResponse")


async def describe_log_dirs(client: Client, request: Struct, version: int) -> Struct:
    """Log directories, and the size of each replica in them."""
    answer = _LogDirs()
    if not client.may(Operation.ADMIN):
        answer.error_code = KafkaError.CLUSTER_AUTHORIZATION_FAILED
        return answer
    topics = None if request.topics is None else sorted({each.topic for each in request.topics})
    wanted = {(each.topic, index) for each in request.topics or () for index in each.partitions}
    node = (await client.service.ask(client, m.DescribeNodeRequest())).message
    replicas = (await client.service.ask(client, m.DescribePartitionsRequest(topics=topics))).message
    assert isinstance(node, m.DescribeNodeResponse)
    assert isinstance(replicas, m.DescribePartitionsResponse)
    for each in node.log_directories:
        if each.error:
            error = ErrorCode.KAFKA_STORAGE_ERROR
            answer.results.append(_LogDirs.DescribeLogDirsResult(error_code=error, log_dir=each.path))
            continue
        here = [
            replica
            for replica in replicas.partitions
            if replica.log_dir == each.path
            and (topics is None or (replica.topic, replica.partition) in wanted)
        ]
        answer.results.append(_LogDirs.DescribeLogDirsResult(log_dir=each.path, topics=_topics(here)))
    return answer


def _topics(replicas: Sequence[m.ReplicaInfo]) -> list[Struct]:
    found: dict[str, Struct] = {}
    for each in replicas:
        topic = found.setdefault(each.topic, _LogDirs.DescribeLogDirsTopic(name=each.topic))
        topic.partitions.append(
            _LogDirs.DescribeLogDirsPartition(
                partition_index=each.partition,
                partition_size=each.size_bytes,
                offset_lag=max(0, each.high_watermark - each.log_end_offset),
            )
        )
    return list(found.values())


OFFERS = (Offer(Api.DESCRIBE_LOG_DIRS, 1, 5, describe_log_dirs),)
