"""`varve tier restore`: partitions from the bucket alone, into a log directory nobody has open."""

import json
import posixpath
import random
import sys
from typing import Annotated, Any

import typer

from varve.cli.byte_progress import byte_progress
from varve.cli.interrupts import told_when_interrupted
from varve.cli.store_access import AsJson, parse_setting, parse_wanted
from varve.cli.tier_access import (
    Cluster,
    StoreSettings,
    TierUrl,
    find_url,
    open_manifests,
    open_tier,
)
from varve.commit_log import LogManager, LogSettings
from varve.commit_log.directory_files import decode_topic_id
from varve.commit_log.names import parse_partition_directory
from varve.disk import FileSystem, RealFileSystem, write_atomically
from varve.embedded.tier_location import (
    DEFAULT_METADATA,
    TierLocation,
    read_location,
    remember_location,
)
from varve.embedded.topic_table import (
    TOPICS_FILE,
    TopicEntry,
    TopicTable,
    decode_topics,
    encode_topics,
)
from varve.foundation.clock import SystemClock
from varve.foundation.errors import InconsistentTopicId
from varve.foundation.settings import parse_settings
from varve.foundation.units import format_bytes, format_count, format_time, parse_time
from varve.object_store import ObjectStore
from varve.tiering.manifest.paths import (
    RemotePath,
    choose_cluster,
    choose_partitions,
    list_partitions,
)
from varve.tiering.restore import (
    RestorePlan,
    RestoreReport,
    hold_log_directory,
    plan_restore,
    read_cluster,
    restore_partition,
)


def command(
    directory: Annotated[
        str,
        typer.Argument(metavar="DIRECTORY", help="A log directory that no process has open."),
    ],
    wanted: Annotated[
        str, typer.Argument(metavar="TOPIC[:PARTITION]", help="A topic, or one partition.")
    ],
    store_url: TierUrl = "",
    store_settings: StoreSettings = [],  # noqa: B006 - typer copies it, and shows no default
    cluster: Cluster = None,
    topic_id: Annotated[
        str | None,
        typer.Option("--topic-id", help="Which of several topics that had the name."),
    ] = None,
    version: Annotated[
        int | None,
        typer.Option("--version", min=1, help="This version of the manifest, not the newest."),
    ] = None,
    as_of: Annotated[
        str | None,
        typer.Option("--as-of", metavar="TIME", help="What was there at a time: 2026-01-31T12:00."),
    ] = None,
    until_offset: Annotated[
        int | None,
        typer.Option("--until-offset", min=1, help="Only the records before this offset."),
    ] = None,
    setting: Annotated[
        list[str],
        typer.Option("--setting", metavar="NAME=VALUE", help="A setting of the topic; repeatable."),
    ] = [],  # noqa: B006 - typer copies it, and shows no default
    workers: Annotated[
        int, typer.Option("--workers", min=1, max=64, help="How many files are fetched at a time.")
    ] = 4,
    as_json: AsJson = False,
) -> None:
    """Rebuild partitions from object storage, byte for byte.

    Every file is held against the size and the checksum that the manifest has of it. A partition
    is built aside and renamed when it is complete; one that is there is never touched. A run that
    was cut short, as by Ctrl-C, goes on where it ended when it is given again. A directory that
    does not exist is made.

    Without --setting a topic that the directory does not know keeps its records until `varve log
    configure` says otherwise. A directory that has no cold tier remembers the object store, unless
    only a part or an older state was restored: with remote.storage.enable=true copying goes on
    there.

    \b
    Examples:
      varve tier restore data orders --store s3://bucket/varve
      varve tier restore data orders:3 --store s3://bucket/varve --as-of 2026-01-31T12:00
      varve tier restore look orders:3 --store file:/backup/tier --until-offset 120000
    """
    if version is not None and as_of is not None:
        raise typer.BadParameter("give --version or --as-of, not both")
    topic, partition = parse_wanted(wanted)
    assert topic is not None
    settings = dict(parse_setting(text) for text in setting)
    parse_settings(LogSettings, settings, f"topic {topic}")
    fs = RealFileSystem()
    path = posixpath.abspath(directory)
    _check_directory(fs, path)
    url = find_url(store_url, path)
    objects = open_tier(url, store_settings)
    cluster = choose_cluster(objects, cluster)
    homes = choose_partitions(
        list_partitions(objects, cluster), topic=topic, topic_id=topic_id, partition=partition
    )
    time_ms = None if as_of is None else parse_time(as_of, name="--as-of")
    plans = [_plan(objects, home, version, time_ms, until_offset) for home in homes]
    sentence = "stopped; what was fetched stays aside, run it again to go on"
    with told_when_interrupted(sentence), hold_log_directory(fs, path, cluster=cluster):
        table = _find_table(fs, path, homes[0])
        _tell_cluster(fs, path, cluster)
        total = sum(plan.stored_bytes for plan in plans)
        with byte_progress("Restoring", total) as advance:
            for plan in plans:
                report = restore_partition(
                    objects, plan, fs, path, clock=SystemClock(), workers=workers, advance=advance
                )
                _print(report, as_json=as_json)
        if settings and topic not in table.topics:
            _write_topic(fs, path, table, homes, settings)
        if version is None and as_of is None and until_offset is None:
            _remember_store(fs, path, url, cluster)


def _check_directory(fs: FileSystem, path: str) -> None:
    """Refuses a directory of other things: varve could not open it afterwards."""
    if not fs.exists(path):
        return
    if not fs.info(path).is_directory:
        raise typer.BadParameter(f"{path} is not a directory")
    for entry in fs.scan(path):
        if entry.is_directory:
            parse_partition_directory(entry.name)


def _plan(
    objects: ObjectStore,
    home: RemotePath,
    version: int | None,
    time_ms: int | None,
    until_offset: int | None,
) -> RestorePlan:
    manifests = open_manifests(objects, home)
    if version is None and time_ms is None:
        manifest = manifests.load()
    else:
        manifest = manifests.at(version=version, time_ms=time_ms)
    return plan_restore(manifests, manifest, until_offset=until_offset)


def _find_table(fs: FileSystem, path: str, home: RemotePath) -> TopicTable:
    """The table of topics; raises InconsistentTopicId when it has another topic of the name."""
    file = f"{path}/{TOPICS_FILE}"
    table = decode_topics(fs.read(file), where=file) if fs.exists(file) else TopicTable()
    entry = table.topics.get(home.topic)
    wanted = decode_topic_id(home.topic_id, f"{home}")
    if entry is not None and entry.id not in (None, wanted):
        raise InconsistentTopicId(
            f"{file} has a topic {home.topic} of id {entry.id}, the cold tier one of {wanted}: "
            "restore into another log directory"
        )
    return table


def _tell_cluster(fs: FileSystem, path: str, cluster: str) -> None:
    found = read_cluster(fs, path)
    if found != cluster:
        typer.secho(
            f"{path} is of cluster {found}: what it copies out later goes there, not to {cluster}",
            fg="yellow",
            err=True,
        )


def _write_topic(
    fs: FileSystem,
    path: str,
    table: TopicTable,
    homes: list[RemotePath],
    settings: dict[str, str],
) -> None:
    entry = TopicEntry(
        name=homes[0].topic,
        id=decode_topic_id(homes[0].topic_id),
        partition_count=max(home.partition for home in homes) + 1,
        settings=settings,
    )
    write_atomically(fs, f"{path}/{TOPICS_FILE}", encode_topics(table.with_topics(entry)))


def _remember_store(fs: FileSystem, path: str, url: str, cluster: str) -> None:
    """Lets copies go on where the topic came from: not those of another cluster, whose objects
    have other names.
    """
    from varve.object_store.opening import normal_url

    if read_location(fs, path) is None and read_cluster(fs, path) == cluster:
        logs = LogManager([path], fs=fs, clock=SystemClock(), random=random.Random())
        remember_location(fs, logs.directories, TierLocation(normal_url(url), DEFAULT_METADATA))


def _print(report: RestoreReport, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(_document(report)) + "\n")
        return
    at = format_time(report.manifest_ms)
    state = f"manifest version {report.manifest_version} of {at}"
    if report.was_there:
        sys.stdout.write(f"{report.path}: was restored before from {state}\n")
        return
    reused = f", {format_bytes(report.reused_bytes)} were there" if report.reused_bytes else ""
    sys.stdout.write(
        f"{report.path}: offsets {report.log_start_offset} to {report.end_offset - 1} in "
        f"{format_count(report.segment_count, 'segment')}, "
        f"{format_bytes(report.fetched_bytes)} fetched{reused}, from {state}\n"
    )


def _document(report: RestoreReport) -> dict[str, Any]:
    return {
        "topic": report.path.topic,
        "partition": report.path.partition,
        "topic_id": report.path.topic_id,
        "directory": report.directory,
        "manifest_version": report.manifest_version,
        "manifest_ms": report.manifest_ms,
        "segments": report.segment_count,
        "log_start_offset": report.log_start_offset,
        "end_offset": report.end_offset,
        "fetched_bytes": report.fetched_bytes,
        "reused_bytes": report.reused_bytes,
        "was_there": report.was_there,
    }
