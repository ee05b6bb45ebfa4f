"""How each job that may be due is run for one topic of a log directory.

What a job needs is imported when it is run: the tables' packages take their time.
"""

from collections.abc import Mapping
from typing import Final

from varve.foundation.errors import InvalidRequest
from varve.jobs.due.job import JobContext, Runner
from varve.jobs.due.schedule import JobName
from varve.jobs.tier.address import TierAddress


def run_compact(context: JobContext) -> tuple[object, str | None]:
    """Compacts what is due by the cleaner's own rules."""
    from varve.jobs.compact.job import compact
    from varve.jobs.compact.settings import CompactSettings

    result = compact(
        _cold(context),
        [context.topic],
        settings=CompactSettings(log=context.settings),
        runner=context.runner,
        clock=context.clock,
    )
    failed = [
        f"partition {one.home.partition}: {one.error}"
        for one in result.partitions
        if one.error is not None
    ]
    return result.to_json(), "; ".join(failed) or None


def run_verify(context: JobContext) -> tuple[object, str | None]:
    """Damage is a failure: it is told again soon, until it is mended."""
    from varve.jobs.verify.job import verify

    result = verify(_cold(context), [context.topic], runner=context.runner, clock=context.clock)
    damage = [one for one in result.findings if one.is_damage]
    told = f"{len(damage)} damaged things, `varve job verify` tells all of them" if damage else None
    return result.to_json(), told


def run_snapshot(context: JobContext) -> tuple[object, str | None]:
    """Goes on from the last snapshot of its place."""
    from varve.jobs.snapshot.job import take_snapshot
    from varve.jobs.snapshot.result import SnapshotSettings

    place, keep = (
        context.settings.varve_job_snapshot_place,
        context.settings.varve_job_snapshot_keep,
    )
    address = _find_cold(context)
    is_alike = address is not None and place.partition(":")[0] == address.url.partition(":")[0]
    result = take_snapshot(
        context.topic,
        place,
        address=address,
        directories=[context.directory],
        place_settings=dict(address.settings) if address is not None and is_alike else None,
        settings=SnapshotSettings(keep=None if keep < 0 else keep),
        runner=context.runner,
        clock=context.clock,
    )
    return result.to_json(), None


def run_table(context: JobContext) -> tuple[object, str | None]:
    """Mode and format are those of the table once it exists."""
    from varve.jobs.table.catalog import CatalogAddress
    from varve.jobs.table.sync import sync_table

    settings = context.settings
    result = sync_table(
        context.topic,
        settings.varve_job_table_name,
        catalog=CatalogAddress(
            settings.varve_job_table_warehouse or None, settings.varve_job_table_catalog or None
        ),
        runner=context.runner,
        address=_find_cold(context),
        directories=[context.directory],
        clock=context.clock,
    )
    return result.to_json(), None


def _find_cold(context: JobContext) -> TierAddress | None:
    """The cold tier, if the topic is in it."""
    return context.address if context.settings.remote_storage_enable else None


def _cold(context: JobContext) -> TierAddress:
    if context.address is None:
        raise InvalidRequest(
            f"{context.directory} does not tell which object store its cold tier is in: nothing "
            "was copied yet"
        )
    return context.address


RUNNERS: Final[Mapping[JobName, Runner]] = {
    JobName.COMPACT: run_compact,
    JobName.TABLE: run_table,
    JobName.SNAPSHOT: run_snapshot,
    JobName.VERIFY: run_verify,
}
