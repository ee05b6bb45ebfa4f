"""From two URLs to one mirrored store, either of which may be down when it is opened."""

from collections.abc import Mapping
from typing import Final

from varve.foundation.clock import Clock
from varve.foundation.errors import InvalidSetting
from varve.foundation.settings import GivenValue
from varve.object_store.mirror_notes import LevelMark
from varve.object_store.mirrored import MirroredObjectStore
from varve.object_store.registry import open_lazily
from varve.object_store.retrying import RetryingObjectStore, RetryPolicy

SIDE_RETRIES: Final = RetryPolicy(attempt_count_max=4, wait_ms_max=2_000, deadline_ms=15_000)
"""For each store of a mirror: while one is repeated for long, the other could have answered."""

_SERVERS: Final = ("endpoint", "base.url", "account.name")
"""Settings that tell one server from another."""


def open_mirrored(
    url: str,
    second_url: str,
    *,
    settings: Mapping[str, GivenValue],
    second_settings: Mapping[str, GivenValue],
    clock: Clock | None = None,
    mark: LevelMark | None = None,
    must_exist: bool = False,
    second_must_exist: bool = False,
) -> MirroredObjectStore:
    """The mirror of two stores, asked for nothing before its first request.

    Raises InvalidRequest or InvalidSetting for a URL or settings that are wrong, and for a second
    store that is the first, or a part of it. Directories that must exist are not made anew.
    """
    first = open_lazily(url, settings, must_exist=must_exist)
    second = open_lazily(second_url, second_settings, must_exist=second_must_exist)
    is_one_server = all(settings.get(name) == second_settings.get(name) for name in _SERVERS)
    if is_one_server and _overlap(first.name, second.name):
        raise InvalidSetting(
            f"{second.name} cannot be the mirror of {first.name}: one is the other or a part of "
            "it; give a store that stands and falls for itself"
        )
    return MirroredObjectStore(
        RetryingObjectStore(first, policy=SIDE_RETRIES),
        RetryingObjectStore(second, policy=SIDE_RETRIES),
        clock=clock,
        mark=mark,
    )


def _overlap(one: str, other: str) -> bool:
    short, long = sorted((f"{one}/", f"{other}/"), key=len)
    return long.startswith(short) and not short.startswith("memory:")
