"""Where a copy of a topic is noted, and notes for copies that are plain files."""

import os

from varve.foundation.clock import Clock
from varve.jobs.outputs.notes import DirectoryOutputs, Output, OutputKind, Outputs, TierOutputs
from varve.jobs.source.options import SourceOptions
from varve.jobs.source.plan import open_partitions
from varve.jobs.tier.address import find_cluster


def find_outputs(options: SourceOptions, *, is_cold: bool) -> Outputs:
    """Where what is made of a topic is noted: in its cold tier, or else in its log directory."""
    if options.address is not None and is_cold:
        return TierOutputs(options.address.open(), find_cluster(options.address))
    return DirectoryOutputs.of(options.directories[0])


def register_files(options: SourceOptions, path: str, *, format: str, clock: Clock) -> None:
    """Notes files of a topic's records before the first of them is written.

    An erasure of the topic names them as out of its reach. `path` is a URL or a local path.
    """
    partitions = open_partitions(options)
    is_cold = any(one.manifest_version is not None for one in partitions)
    find_outputs(options, is_cold=is_cold).note(
        Output(
            kind=OutputKind.FILES,
            topic=partitions[0].topic,
            topic_id=partitions[0].topic_id,
            place=path if ":" in path else os.path.abspath(path),
            name=format,
            noted_ms=clock.now_ms(),
        )
    )
