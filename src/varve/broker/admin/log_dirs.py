"""DescribeLogDirs: what each log directory holds, and how much room is left on its disk."""

import os
import shutil
from collections.abc import Mapping

from varve.broker.broker import Broker
from varve.broker.context import RequestContext
from varve.broker.security.rights import CLUSTER_NAME, Operation, ResourceType
from varve.commit_log import LogDirectory
from varve.disk import FileSystem, RealFileSystem
from varve.wire import ErrorCode
from varve.wire.messages.cluster import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

_Wanted = Mapping[str, frozenset[int]] | None


async def describe_log_dirs(
    broker: Broker, context: RequestContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    may = broker.authorizer.is_allowed
    if not may(context, Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    wanted: _Wanted = None
    if request.topics is not None:
        wanted = {one.topic: frozenset(one.partitions) for one in request.topics}
    return DescribeLogDirsResponse(results=await broker.offload(_describe_all, broker, wanted))


def _describe_all(broker: Broker, wanted: _Wanted) -> list[DescribeLogDirsResult]:
    store = broker.store
    return [_describe(store.fs, directory, wanted) for directory in store.directories]


def _describe(fs: FileSystem, directory: LogDirectory, wanted: _Wanted) -> DescribeLogDirsResult:
    is_real = isinstance(fs, RealFileSystem)
    result = DescribeLogDirsResult(
        log_dir=os.path.abspath(directory.path) if is_real else directory.path
    )
    if directory.failure is not None:
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return result
    topics: dict[str, DescribeLogDirsTopic] = {}
    for partition, log in sorted(directory.logs.copy().items()):
        name, number = partition.topic, partition.partition
        if wanted is None or number in wanted.get(name, ()):
            topic = topics.setdefault(name, DescribeLogDirsTopic(name=name))
            topic.partitions.append(
                DescribeLogDirsPartition(partition_index=number, partition_size=log.size)
            )
    result.topics = list(topics.values())
    if is_real:
        usage = shutil.disk_usage(directory.path)
        result.total_bytes, result.usable_bytes = usage.total, usage.free
    return result
