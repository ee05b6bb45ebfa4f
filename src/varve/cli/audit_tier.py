"""What `varve audit --tier` shows: the removals from the cold part of a partition.

Invariant  reads only, of the local disk and of the object store.
"""

import json
import posixpath
import sys

from varve.cleaning.removals.audit import AuditReport
from varve.cleaning.removals.removal import encode_removal
from varve.cli.audit_table import count_noun, print_entries, remote_entry
from varve.cli.tier_access import find_tiered, find_url, open_manifests, open_tier
from varve.commit_log.directory_files import decode_partition_metadata
from varve.commit_log.names import PARTITION_METADATA_FILE
from varve.disk import FileSystem
from varve.tiering.expiry import RemoteRemoval, read_remote_removals
from varve.tiering.partition import get_remote_path
from varve.tiering.restore import read_cluster


def print_remote_removals(
    fs: FileSystem, report: AuditReport, store_settings: list[str], *, as_json: bool
) -> None:
    """Prints what is on record in the bucket of one partition, if a part of it was ever there."""
    directory = report.directory
    log_directory = posixpath.dirname(directory)
    if not report.moved_records and report.partition.topic not in find_tiered(fs, log_directory):
        return
    path = f"{directory}/{PARTITION_METADATA_FILE}"
    topic_id = decode_partition_metadata(fs.read(path), where=path) if fs.exists(path) else None
    home = get_remote_path(report.partition, topic_id, read_cluster(fs, log_directory))
    objects = open_tier(find_url("", log_directory), store_settings)
    try:
        manifests = open_manifests(objects, home)
        removals = read_remote_removals(objects, manifests)
        is_there = manifests.load().version > 0
    finally:
        objects.close()
    if as_json:
        for removal in removals:
            sys.stdout.write(json.dumps(_document(removal), ensure_ascii=False) + "\n")
        return
    print_entries(
        [
            remote_entry(remote_removal.balance, is_done=remote_removal.is_done)
            for remote_removal in removals
        ]
    )
    removed = sum(
        remote_removal.balance.records_removed
        for remote_removal in removals
        if remote_removal.is_done
    )
    told = (
        f"{count_noun(len(removals), 'removal')} on record, {count_noun(removed, 'record')} removed"
    )
    if not is_there:
        told = "nothing is there: it left the tier with all that was there, or was never copied"
    sys.stdout.write(f"{report.partition} in object storage: {told}\n")


def _document(removal: RemoteRemoval) -> dict[str, object]:
    return {
        "type": "cold_removal",
        "key": removal.key,
        "is_done": removal.is_done,
        **encode_removal(removal.balance),
    }
