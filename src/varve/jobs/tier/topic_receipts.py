"""Which receipts of erasures there are of a topic, for jobs that must not copy what was erased.

Layout     docs/formats/receipt.md
"""

from typing import Final

from varve.disk import RealFileSystem
from varve.jobs.source.options import SourceOptions
from varve.jobs.tier.bucket import find_cluster

Receipts = frozenset[tuple[str, int]]
"""Names, and when each was written."""

_PREFIX: Final = "varve-receipt-"


def find_receipts(
    options: SourceOptions, topic: str, topic_id: str, *, is_remote: bool
) -> Receipts:
    """All receipts: of a topic in the cold tier they lie there, of others in log directories."""
    if options.address is not None and is_remote:
        folder = f"{find_cluster(options.address)}/{topic}.{topic_id}/receipt/"
        return frozenset(
            (object_info.key, object_info.modified_ms)
            for object_info in options.address.objects().list(folder)
        )
    fs = RealFileSystem()
    return frozenset(
        (f"{directory}/{info.name}", info.modified_ms)
        for directory in options.directories
        for info in fs.scan(directory)
        if info.name.startswith(_PREFIX)
    )
