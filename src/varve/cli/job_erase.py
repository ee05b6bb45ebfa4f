"""`varve job erase`: the records of persons leave topics and all copies, with a receipt.

Crash      killed anywhere and run again it completes; no receipt is there before everything was
           read again.
"""

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from varve.cli.erase_input import (
    find_where,
    parse_asked,
    parse_deadline,
    read_bytes,
    read_field,
    read_signing_key,
    read_wanted_keys,
)
from varve.cli.erase_receipt import check_receipt_path, write_receipt
from varve.cli.job_options import (
    Conf,
    LogDirectories,
    Master,
    ReportPath,
    SparkOptions,
    spark_options,
)
from varve.cli.job_run import open_job, tell_report, write_report
from varve.cli.store_access import AsJson, parse_setting
from varve.cli.tier_access import Cluster, MirrorUrl, StoreSettings, TierUrl
from varve.foundation.clock import SystemClock
from varve.foundation.errors import InvalidRequest
from varve.foundation.units import parse_duration

if TYPE_CHECKING:
    from varve.cli.erase_input import Where
    from varve.foundation.settings import GivenValue
    from varve.jobs.erase.receipt import SigningKey
    from varve.jobs.erase.request import ErasureRequest
    from varve.jobs.erase.result import ErasureResult
    from varve.jobs.tasks import TaskRunner
    from varve.spark.stages import JobReport

_WHEN_INTERRUPTED: Final = (
    "stopped; every partition is as it was or erased, and no receipt was issued: run it again"
)


def command(
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC", help="The topics.", show_default=False),
    ] = None,
    keys: Annotated[
        list[str],
        typer.Option(
            "--key",
            metavar="KEY",
            help="A key whose records go: text, or bytes as base64:... or hex:...; repeatable.",
        ),
    ] = [],  # noqa: B006 - typer copies it, and shows no default
    keys_file: Annotated[
        str | None,
        typer.Option(
            "--keys-file",
            metavar="PATH",
            help="A file of keys, one per line, each written as for --key; millions are fine.",
        ),
    ] = None,
    field: Annotated[
        str | None,
        typer.Option(
            "--field",
            metavar="PATH",
            help="A field of JSON values and keys, such as customer.email, or as a list where "
            "names hold dots: records with one of the values there go.",
        ),
    ] = None,
    values: Annotated[
        list[str],
        typer.Option("--value", metavar="VALUE", help="A value of the field; repeatable."),
    ] = [],  # noqa: B006
    values_file: Annotated[
        str | None,
        typer.Option("--values-file", metavar="PATH", help="A file of values, one per line."),
    ] = None,
    format: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="How values are written: json, or debezium, whose rows before and after a change "
            "are looked into.",
        ),
    ] = "json",
    store_url: TierUrl = "",
    store_settings: StoreSettings = [],  # noqa: B006
    mirror_url: MirrorUrl = "",
    directories: LogDirectories = [],  # noqa: B006
    cluster: Cluster = None,
    place_settings: Annotated[
        list[str],
        typer.Option(
            "--place-setting",
            metavar="NAME=VALUE",
            help="A setting of the place of snapshots that were made of the topics; repeatable.",
        ),
    ] = [],  # noqa: B006
    catalog_settings: Annotated[
        list[str],
        typer.Option(
            "--catalog-setting",
            envvar="VARVE_CATALOG_SETTINGS",
            metavar="NAME=VALUE",
            help="A setting of the catalog of tables that were made of the topics; repeatable.",
        ),
    ] = [],  # noqa: B006
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Tell what would go, and change nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask on a terminal.")] = False,
    sign_key: Annotated[
        str | None,
        typer.Option(
            "--sign-key",
            metavar="PEM",
            help="A private key of Ed25519 (PKCS8) that signs the receipt; its passphrase, if any, "
            "is in VARVE_SIGN_PASSPHRASE.",
        ),
    ] = None,
    asked: Annotated[
        str | None,
        typer.Option("--asked", metavar="TIME", help="When it was asked for; left out, now."),
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(
            "--deadline", metavar="DAYS|TIME", help="Until when: days from --asked, or a time."
        ),
    ] = None,
    receipt: Annotated[
        str | None,
        typer.Option(
            "--receipt",
            metavar="PATH",
            help="Write the receipt to PATH.json and the page to PATH.html as well.",
        ),
    ] = None,
    grace: Annotated[
        str | None,
        typer.Option(
            "--grace",
            metavar="SPAN",
            help="Leave replaced objects to readers for so long, such as 15m; the receipt then "
            "waits for --finish.",
        ),
    ] = None,
    finish: Annotated[
        str | None,
        typer.Option(
            "--finish",
            metavar="ID",
            help="Finish an erasure whose grace time is over, with the same keys, and issue its "
            "receipt.",
        ),
    ] = None,
    id: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="ID",
            help="The id of the erasure, to take up one that was cut short; left out, a new one.",
        ),
    ] = None,
    rescan: Annotated[
        str,
        typer.Option(
            "--rescan",
            metavar="full|keys",
            help="How all is read again: all data, or key indexes where they tell.",
        ),
    ] = "full",
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="Take partitions over from a job that was killed on another machine.",
        ),
    ] = False,
    digests: Annotated[
        bool,
        typer.Option(
            "--digests/--no-digests",
            help="List salted digests of the keys in the receipt, or their number alone.",
        ),
    ] = True,
    verify: Annotated[
        str | None,
        typer.Option(
            "--verify-receipt", metavar="PATH", help="Check the signature of a receipt instead."
        ),
    ] = None,
    public_key: Annotated[
        str | None,
        typer.Option("--public-key", metavar="PEM", help="The public key to check it with."),
    ] = None,
    as_json: AsJson = False,
    master: Master = None,
    conf: Conf = [],  # noqa: B006
    report: ReportPath = None,
) -> None:
    """Erase the records of persons from topics, hot and cold, and issue a receipt.

    Segments that hold a match are found by their key indexes, or by reading where there is none or
    a field is looked for; only these are rewritten. Offsets stay, and nothing but the matches goes.
    Snapshots and tables that jobs made of the topics lose the rows too. Then everything that is
    there is read again, and only if nothing is found the receipt is written: beside the topic in
    the object store, and where --receipt says.

    Keys and values are never written to a receipt. On a terminal what would go is shown first, and
    the job asks. With --json every line has `type`: partition, erasure or report.

    \b
    Examples:
      varve job erase customers --dir data --key 4711 --dry-run
      varve job erase customers orders --dir data --keys-file keys.txt --deadline 30 \\
        --sign-key signing.pem --receipt erased
      varve job erase cdc.customers --store s3://bucket/varve --format debezium \\
        --field email --value ann@example.org --yes
      varve job erase --verify-receipt erased.json --public-key public.pem
    """
    if verify is not None:
        verify_file(verify, public_key)
        return
    where = find_where(
        store_url,
        store_settings,
        mirror_url,
        list(map(str, directories)),
        cluster,
        topics=topics or (),
    )
    request = _request(
        tuple(topics or ()),
        id=finish or id,
        keys=read_wanted_keys(keys, keys_file),
        field=read_field(field, values, values_file, format),
        asked_ms=parse_asked(asked, SystemClock().now_ms()),
        deadline=deadline,
        grace_ms=0 if grace is None else parse_duration(grace, name="--grace"),
        rescan=rescan,
        lists_digests=digests,
        takes_over=take_over,
    )
    call = _Call(
        where,
        request,
        read_signing_key(sign_key),
        finish is not None,
        dict(parse_setting(setting) for setting in place_settings),
        dict(parse_setting(setting) for setting in catalog_settings),
    )
    if receipt is not None and not dry_run:
        check_receipt_path(receipt)
    is_asked = sys.stdin.isatty() and sys.stderr.isatty() and not yes and not dry_run
    result, done = _run(call, spark_options(master, conf), dry_run=dry_run, is_asked=is_asked)
    _tell(result, done, as_json=as_json)
    if receipt is not None and result.receipt is not None:
        write_receipt(receipt, result)
    if done is not None and report is not None:
        write_report(done, report)


@dataclass(frozen=True, slots=True)
class _Call:
    """What the job is called with."""

    where: "Where"
    request: "ErasureRequest"
    signing_key: "SigningKey | None"
    is_finish: bool
    snapshot_settings: "dict[str, GivenValue]"
    table_settings: "dict[str, GivenValue]"

    def run(self, runner: "TaskRunner", *, is_dry_run: bool) -> "ErasureResult":
        from varve.jobs.erase.erasure import erase

        return erase(
            self.request,
            runner=runner,
            address=self.where.address,
            directories=self.where.directories,
            snapshot_settings=self.snapshot_settings,
            table_settings=self.table_settings,
            signing_key=self.signing_key,
            is_dry_run=is_dry_run,
            is_finish=self.is_finish,
        )


def _request(
    topics: tuple[str, ...],
    *,
    id: str | None,
    deadline: str | None,
    asked_ms: int,
    rescan: str,
    **given: object,
) -> "ErasureRequest":
    from varve.jobs.erase.erasure import new_erasure_id
    from varve.jobs.erase.request import ErasureRequest, RescanMode

    if rescan not in tuple(RescanMode):
        raise InvalidRequest(f"--rescan {rescan!r:.40} is none of {', '.join(RescanMode)}")
    return ErasureRequest(
        topics=topics,
        id=id or new_erasure_id(),
        asked_ms=asked_ms,
        deadline_ms=parse_deadline(deadline, asked_ms),
        rescan=RescanMode(rescan),
        **given,  # type: ignore[arg-type]  # the caller names them by their fields
    )


def _run(
    call: _Call, options: SparkOptions, *, dry_run: bool, is_asked: bool
) -> "tuple[ErasureResult, JobReport | None]":
    """On Spark where there is a bucket; what is on the local disk alone needs none."""
    with ExitStack() as stack:
        if call.where.address is None:
            from varve.jobs.tasks import LocalRunner

            local = LocalRunner()
            return ask_and_run(
                lambda is_dry: call.run(local, is_dry_run=is_dry),
                dry_run=dry_run,
                is_asked=is_asked,
            ), None
        job = stack.enter_context(open_job("erase", options, when_interrupted=_WHEN_INTERRUPTED))
        from varve.spark.runner import SparkRunner

        spread = SparkRunner(job.spark, "erase", call.request.topics)
        result = ask_and_run(
            lambda is_dry: job.run(lambda: call.run(spread, is_dry_run=is_dry)),
            dry_run=dry_run,
            is_asked=is_asked,
        )
        return result, job.report(result.records, result.to_json())


def ask_and_run(
    run: "Callable[[bool], ErasureResult]", *, dry_run: bool, is_asked: bool
) -> "ErasureResult":
    """Runs it; if it is to be asked, only after a dry run was shown and agreed to."""
    if dry_run:
        return run(True)
    if is_asked:
        from varve.cli.erase_view import print_result

        print_result(run(True))
        typer.confirm("Erase these records for good?", abort=True, err=True)
    return run(False)


def _tell(result: "ErasureResult", done: "JobReport | None", *, as_json: bool) -> None:
    if as_json:
        document = result.to_json()
        for erasure in result.partitions:
            typer.echo(json.dumps({"type": "partition", **erasure.to_json()}))
        document.pop("partitions")
        typer.echo(json.dumps({"type": "erasure", **document}))
        if done is not None:
            typer.echo(json.dumps({"type": "report", **done.to_document()}))
        return
    from varve.cli.erase_view import print_result

    print_result(result)
    if done is not None:
        tell_report(done)


def verify_file(path: str, public_key: str | None) -> None:
    """Checks a receipt, and says in a line what it is; raises NotGenuine for another."""
    from varve.jobs.erase.receipt import read_public_key, verify_receipt

    if public_key is None:
        raise InvalidRequest("--verify-receipt needs --public-key, the PEM file of the signer")
    key = read_public_key(read_bytes(public_key), public_key)
    document = verify_receipt(read_bytes(path), key, where=path)
    topics = ", ".join(document["request"]["topics"])
    typer.echo(
        f"{path}: the signature is right; erasure {document['erasure']} of {topics}, "
        f"{document['records']:,} records"
    )
