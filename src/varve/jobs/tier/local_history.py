"""The leader epochs of a log on the local disk: which part of the cold tier is of its history.

A log that was cut by a new leader goes on under a higher epoch. Until that is copied the bucket
alone does not tell that the end of it was left; the log's own epochs do.

Invariant  reads only, beside a store that has the directory open.
"""

from varve.commit_log.directory_files import decode_partition_metadata, encode_topic_id
from varve.commit_log.leader_epochs import LeaderEpochs
from varve.commit_log.names import LEADER_EPOCH_FILE, PARTITION_METADATA_FILE, TopicPartition
from varve.disk import FileSystem
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import Epochs


def find_history(fs: FileSystem, directory: str, home: RemotePath) -> Epochs | None:
    """The epochs of a partition's log in a directory; None where that has no such log."""
    path = f"{directory}/{TopicPartition(home.topic, home.partition)}"
    metadata, epochs = f"{path}/{PARTITION_METADATA_FILE}", f"{path}/{LEADER_EPOCH_FILE}"
    if not fs.exists(metadata) or not fs.exists(epochs):
        return None
    if encode_topic_id(decode_partition_metadata(fs.read(metadata), metadata)) != home.topic_id:
        return None
    return LeaderEpochs.decode(fs.read(epochs), epochs).entries or None
