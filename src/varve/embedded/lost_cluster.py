"""Logs with a cold tier whose cluster is no longer told by any of their directories.

The objects of a partition are named by its cluster: a new one would find nothing in the tier.

Invariant  reads only.
"""

from collections.abc import Sequence
from contextlib import suppress

from varve.commit_log.names import META_PROPERTIES_FILE
from varve.disk import FileSystem
from varve.embedded.tier_place import read_place
from varve.foundation.errors import InconsistentClusterId


def check_cluster_is_told(fs: FileSystem, directories: Sequence[str]) -> None:
    """Raises InconsistentClusterId where logs have a cold tier and no directory has the cluster id.

    What cannot be read is passed over: who opens the directory says why.
    """
    if any(fs.exists(f"{directory}/{META_PROPERTIES_FILE}") for directory in directories):
        return
    for directory in directories:
        place = None
        with suppress(OSError):
            if any(entry.is_directory for entry in fs.scan(directory)):
                place = read_place(fs, directory)
        if place is not None:
            raise InconsistentClusterId(
                f"{directory}/{META_PROPERTIES_FILE} is missing, and its cluster.id names the "
                f"objects of the cold tier: the folder at the top of {place.url} has that name; "
                "write the file anew with the lines version=1, node.id=1 and cluster.id=NAME"
            )
