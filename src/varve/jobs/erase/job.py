"""Erases the records of persons from topics in a bucket, a log directory, or both, with a receipt.

Crash      killed anywhere and run again it completes; each partition is as it was, or erased.
"""

import os
import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from varve import embedded
from varve.disk import RealFileSystem
from varve.embedded.tier_place import check_remembered, read_place
from varve.foundation.clock import Clock, SystemClock
from varve.foundation.errors import Locked
from varve.foundation.settings import GivenValue
from varve.jobs.erase.outputs import OutputSettings
from varve.jobs.erase.places import ErasedStore, ErasedTier, Places
from varve.jobs.erase.receipt_signature import SigningKey
from varve.jobs.erase.request import ErasureRequest
from varve.jobs.erase.result import ErasureResult
from varve.jobs.erase.run import erase_from
from varve.jobs.scratch import sweep_scratch
from varve.jobs.tasks import TaskRunner
from varve.jobs.tier.address import TierAddress, find_cluster, find_topic
from varve.jobs.tier.mirror_reach import MirrorReach
from varve.jobs.tier.reach import AddressReach, TierReach
from varve.tiering.manifest.pages import new_id


def erase(
    request: ErasureRequest,
    *,
    runner: TaskRunner,
    address: TierAddress | None = None,
    mirror_url: str = "",
    mirror_settings: tuple[tuple[str, GivenValue], ...] = (),
    directories: Sequence[str] = (),
    snapshot_settings: Mapping[str, GivenValue] | None = None,
    table_settings: Mapping[str, GivenValue] | None = None,
    signing_key: SigningKey | None = None,
    is_dry_run: bool = False,
    is_finish: bool = False,
    clock: Clock | None = None,
) -> ErasureResult:
    """Erases what is asked for, and issues the receipt.

    `directories` are those of one store, which must not be open elsewhere: Locked otherwise. A
    store at `mirror_url` that mirrors the bucket is erased with it. The settings of snapshots and
    tables are what it takes to open those that were made of the topics. Raises NotFound for a topic
    that is nowhere, and NotErased where the re-scan finds something.
    """
    outputs = OutputSettings(
        snapshots=snapshot_settings or {},
        tables=table_settings or {},
        store_url="" if address is None else address.url,
        store={} if address is None else dict(address.settings),
    )
    if not is_dry_run:
        sweep_scratch()
    with ExitStack() as stack:
        places = open_places(
            stack,
            address=address,
            mirror_url=mirror_url,
            mirror_settings=mirror_settings,
            directories=directories,
        )
        return erase_from(
            replace(places, output_settings=outputs),
            request,
            runner=runner,
            clock=clock or SystemClock(),
            random=random.SystemRandom(),
            signing_key=signing_key,
            is_dry_run=is_dry_run,
            is_finish=is_finish,
        )


def open_places(
    stack: ExitStack,
    *,
    address: TierAddress | None,
    mirror_url: str,
    mirror_settings: tuple[tuple[str, GivenValue], ...],
    directories: Sequence[str],
) -> Places:
    """The bucket and the store, which is open until the stack ends; raises Locked.

    Raises InvalidSetting for a bucket that is not the one the directories have copied to.
    """
    paths = [os.path.abspath(one) for one in directories]
    if address is not None:
        _check_remembered(address.url, paths)
    return Places(
        None if address is None else _open_tier(address, mirror_url, mirror_settings),
        _open_store(paths, stack) if paths else None,
    )


def _check_remembered(url: str, directories: Sequence[str]) -> None:
    """A receipt that speaks of another bucket would leave all that was copied as it is."""
    for directory in directories:
        place = read_place(RealFileSystem(), directory)
        if place is not None:
            check_remembered("the object store", url, place.url, directory)


def new_erasure_id() -> str:
    """An id for an erasure."""
    return new_id(random.SystemRandom())


def _open_tier(
    address: TierAddress, mirror_url: str, mirror_settings: tuple[tuple[str, GivenValue], ...]
) -> ErasedTier:
    reach: TierReach = AddressReach(address)
    if mirror_url:
        reach = MirrorReach(address, mirror_url, mirror_settings)
    return ErasedTier(
        reach,
        find_cluster(address),
        lambda name: find_topic(address, name),
        address.url,
    )


def _open_store(directories: Sequence[str], stack: ExitStack) -> ErasedStore:
    try:
        store = stack.enter_context(embedded.open(list(directories), maintain=False))
    except Locked as error:
        raise Locked(
            f"{error}; stop it for the erasure, or erase from the object store alone and from the "
            "directory later"
        ) from error
    return ErasedStore(store, tuple(directories), RealFileSystem())
