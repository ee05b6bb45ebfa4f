"""`varve snapshot`, `table`, `output` and `receipt`: what jobs wrote from topics, without Spark."""

from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from varve.cli import options, spark_options
from varve.cli.command import command
from varve.cli.output import Grouped, Output
from varve.foundation.clock import SystemClock
from varve.foundation.units import format_bytes, format_count, format_moment

if TYPE_CHECKING:
    from varve.jobs.snapshot.document import SnapshotDocument
    from varve.jobs.table.catalog import CatalogAddress
    from varve.jobs.tier.location import TopicLocation
    from varve.topics.outputs import DerivedOutput

_place = click.argument("place", metavar="PLACE")
_table = click.argument("name", metavar="NS.NAME")


# snapshot


@command(
    "varve snapshot list /backup/orders",
    "varve snapshot list s3://bucket/orders --place-set region=eu-west-1 --json",
)
@_place
@spark_options.place_settings
@options.output
def snapshot_list(place: str, output: Output, place_settings: dict[str, str]) -> None:
    """List the snapshots of a place.

    A place is a directory or the URL of an object store, as `varve job snapshot --to` takes it. The
    resume offsets are those at which a consumer continues after it has loaded the rows.
    """
    from varve.jobs.snapshot.store import open_place

    documents = open_place(place, place_settings).documents()
    now_ms = SystemClock().now_ms()
    output.print_table(
        "snapshot",
        ("snapshot", "topic", "taken", "from", "rows", "files", "bytes"),
        [
            (
                document.snapshot,
                document.topic,
                format_moment(document.taken_ms, now_ms),
                document.previous,
                Grouped(document.rows),
                Grouped(len(document.files)),
                format_bytes(document.size),
            )
            for document in documents
        ],
        details=[[("resume", _format_offsets(document))] for document in documents],
        documents=map(_snapshot_document, documents),
    )


def _format_offsets(document: "SnapshotDocument") -> str:
    return " ".join(
        f"{partition}:{offset}" for partition, offset in document.resume_offsets.items()
    )


def _snapshot_document(document: "SnapshotDocument") -> dict[str, object]:
    return {
        "snapshot": document.snapshot,
        "previous": document.previous,
        "topic": document.topic,
        "topic_id": document.topic_id,
        "taken_ms": document.taken_ms,
        "rows": document.rows,
        "files": len(document.files),
        "bytes": document.size,
        "resume_offsets": document.resume_offsets,
    }


@command("varve snapshot verify /backup/orders", "varve snapshot verify /backup/orders --json")
@_place
@spark_options.place_settings
@options.output
def snapshot_verify(place: str, output: Output, place_settings: dict[str, str]) -> None:
    """Compare all files of a place with their digests.

    The exit status is 1 if a file is damaged or missing.
    """
    from varve.jobs.snapshot.store import named_files, open_place

    store = open_place(place, place_settings)
    documents, faults = store.documents(), store.find_faults()
    for fault in faults:
        output.print_result(fault, "fault", message=fault)
    files = len(named_files(documents))
    state = f"{len(faults):,} damaged or missing" if faults else "all as written"
    output.print_result(
        f"{format_count(len(documents), 'snapshot')}, {format_count(files, 'file')}: {state}",
        "verification",
        snapshots=len(documents),
        files=files,
        faults=len(faults),
    )
    if faults:
        raise click.exceptions.Exit(1)


@command(
    "varve snapshot prune /backup/orders --keep 7 --yes",
    "varve snapshot prune s3://bucket/orders --keep 7 --place-set region=eu-west-1",
)
@_place
@options.number("--keep", min=1, required=True, help="How many of the newest snapshots remain.")
@options.yes
@spark_options.place_settings
@options.output
def snapshot_prune(
    place: str, output: Output, keep: int, yes: bool, place_settings: dict[str, str]
) -> None:
    """Delete all but the newest snapshots of a place.

    Leftover files of runs that were killed more than a day ago are deleted too.
    """
    from varve.jobs.snapshot.snapshot import DAY_MS
    from varve.jobs.snapshot.store import open_place

    store = open_place(place, place_settings)
    output.confirm(f"delete all but the newest {keep} snapshots of {place}", is_confirmed=yes)
    removed = store.keep(keep)
    swept = store.sweep(before_ms=SystemClock().now_ms() - DAY_MS)
    output.print_result(
        f"{len(removed):,} older snapshots and files deleted, "
        f"{format_count(len(swept), 'leftover')} of killed runs",
        "prune",
        removed=removed,
        swept=swept,
    )


# table


@command(
    "varve table expire shop.orders --warehouse data.tables --older-than 7d",
    "varve table expire shop.orders --catalog http://host:8181 --older-than 30d --yes",
)
@_table
@options.duration(
    "--older-than",
    required=True,
    help="Snapshots older than this are deleted; the current one stays.",
)
@options.yes
@spark_options.catalog
@options.output
def table_expire(
    name: str, catalog: "CatalogAddress", output: Output, older_than: int, yes: bool
) -> None:
    """Delete old snapshots of a table and their files.

    Rows of the current snapshot stay, as do snapshots with a branch or tag.
    """
    import varve.spark as vs

    output.confirm(f"delete older snapshots of table {name}", is_confirmed=yes)
    for result in vs.expire_table(catalog, name, older_than=older_than):
        output.print_result(
            f"{result.table}: {format_count(result.snapshots, 'snapshot')} expired, "
            f"{result.kept:,} remain, {format_count(len(result.removed), 'file')} deleted",
            "expiry",
            **result.to_json(),
        )


# output


@command(
    "varve output list customers -d data",
    "varve output list orders --store s3://bucket/varve --json",
)
@options.topic
@spark_options.mirrored_location
@options.output
def output_list(topic: str, location: "TopicLocation", output: Output) -> None:
    """List the snapshots, tables, topics and files of a topic.

    Jobs register what they write from a topic. An erasure erases rows there too, and fails if one
    of them cannot be reached. Commands read log directories that no server has open.
    """
    from varve.jobs.erase.erasure import open_targets
    from varve.jobs.erase.targets import list_outputs

    with ExitStack() as stack:
        targets = open_targets(
            stack, address=location.find_bucket(with_mirror=True), directories=location.directories
        )
        outputs = list_outputs(targets, topic)
    if not outputs and not output.is_json:
        output.note("no output of this topic is registered")
        return
    now_ms = SystemClock().now_ms()
    output.print_table(
        "output",
        ("id", "kind", "name", "place", "registered"),
        [
            (
                derived.id,
                str(derived.kind),
                derived.name,
                derived.place,
                format_moment(derived.noted_ms, now_ms),
            )
            for derived in outputs
        ],
        documents=map(_output_document, outputs),
    )


@command(
    "varve output forget customers snapshot-2b1f0c86d1e5a3b7c4f2096e8d7a5b31 -d data",
    "varve output forget customers table-77aa0c86d1e5a3b7c4f2096e8d7a5b31 -d data --yes",
)
@options.topic
@click.argument("id", metavar="ID")
@options.yes
@spark_options.mirrored_location
@options.output
def output_forget(
    topic: str, id: str, location: "TopicLocation", output: Output, yes: bool
) -> None:
    """Forget an output that no longer exists.

    Erasures no longer look there: records in an output that still exists, or in a backup of it, are
    reached by no erasure.
    """
    from varve.jobs.erase.erasure import open_targets
    from varve.jobs.erase.targets import forget_output

    output.confirm(f"forget the output {id} of {topic}", is_confirmed=yes)
    with ExitStack() as stack:
        targets = open_targets(
            stack, address=location.find_bucket(with_mirror=True), directories=location.directories
        )
        forgotten = forget_output(targets, topic, id)
    output.print_result(
        f"forgot {forgotten.kind} {forgotten.name} at {forgotten.place}; erasures no longer look "
        "there",
        "forgotten",
        **_output_document(forgotten),
    )


def _output_document(derived: "DerivedOutput") -> dict[str, object]:
    return {
        "id": derived.id,
        "kind": str(derived.kind),
        "name": derived.name,
        "place": derived.place,
        "noted_ms": derived.noted_ms,
    }


# receipt


@command(
    "varve receipt verify erased.json --public-key public.pem",
    "varve receipt verify erased.json --public-key public.pem --json",
)
@click.argument("path", metavar="FILE")
@click.option(
    "--public-key", required=True, metavar="PEM", help="The Ed25519 public key of the signer."
)
@options.output
def receipt_verify(path: str, output: Output, public_key: str) -> None:
    """Verify the signature of a receipt.

    The exit status is 1 if the key did not sign it, or if it was changed since.
    """
    from varve.jobs.erase.receipt_signature import verify_receipt_file

    document = verify_receipt_file(path, public_key)
    topics = document["request"]["topics"]
    output.print_result(
        f"{path}: the signature is valid; erasure {document['erasure']} of {', '.join(topics)}, "
        f"{format_count(document['records'], 'record')}",
        "receipt",
        erasure=document["erasure"],
        topics=topics,
        records=document["records"],
    )
