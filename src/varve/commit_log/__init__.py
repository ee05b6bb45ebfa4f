"""Logs on a local disk: segments, indexes, append, read, recovery, producer state, log
directories.
"""

from varve.commit_log.appender import LogAppendResult
from varve.commit_log.log import DEFAULT_FETCH_BYTES, Log
from varve.commit_log.log_directory import LogDirectory
from varve.commit_log.log_loader import LoadRequest
from varve.commit_log.log_manager import LogManager
from varve.commit_log.log_reader import (
    AbortedRange,
    FetchResult,
    Isolation,
    RemoteLogReader,
    RemoteLogReaders,
    RemoteRead,
    RemoteReadRequest,
)
from varve.commit_log.names import TopicPartition
from varve.commit_log.producer_state import AppendOrigin, LastRecord
from varve.commit_log.segment import Segment, SegmentFiles
from varve.commit_log.segment_reader import TimestampOffset
from varve.commit_log.settings import LogSettings, StoreSettings
from varve.commit_log.transaction_index import AbortedTransaction

__all__ = [
    "DEFAULT_FETCH_BYTES",
    "AbortedRange",
    "AbortedTransaction",
    "AppendOrigin",
    "FetchResult",
    "Isolation",
    "LastRecord",
    "LoadRequest",
    "Log",
    "LogAppendResult",
    "LogDirectory",
    "LogManager",
    "LogSettings",
    "RemoteLogReader",
    "RemoteLogReaders",
    "RemoteRead",
    "RemoteReadRequest",
    "Segment",
    "SegmentFiles",
    "StoreSettings",
    "TimestampOffset",
    "TopicPartition",
]
