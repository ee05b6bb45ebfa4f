"""Removes manifest versions past their retention, the pages only they named, and orphans.

Invariant  the newest version stays, and every page that a version left in the chain names. A page
           that a version let go is named by no later one, so it goes with the version before.
Crash      pages go before the versions that lead to them: what is left is found by the next run.
Threads    any, also several at once.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from varve.object_store import ObjectInfo, ObjectStore
from varve.tiering.manifest import Manifest
from varve.tiering.manifest_versions import ManifestVersions
from varve.tiering.page_store import PageStore

RUN_VERSIONS_MAX: Final = 1_000
"""How many versions one run looks at: each is one read."""


@dataclass(frozen=True, slots=True)
class Retirement:
    """What a run removed, and how many versions are left."""

    versions_removed: int
    objects_removed: int
    versions_left: int


def retire_versions(
    objects: ObjectStore, versions: ManifestVersions, *, now_ms: int, retention_ms: int
) -> Retirement:
    """Removes versions that were followed by another `retention_ms` ago or earlier."""
    chain, left_over = versions.list_retained()
    removable: list[int] = []
    keys: list[str] = []
    for version, next_version in pairwise(chain[: RUN_VERSIONS_MAX + 1]):
        following = versions.find(next_version)
        if following is None or not _lets_go(following, now_ms, retention_ms):
            break
        removable.append(version)
        keys += [f"{versions.home.prefix}{entry.key}" for entry in following.retired]
    if keys:
        objects.delete(keys)
    if removable or left_over:
        versions.remove([*left_over, *removable])
    return Retirement(
        versions_removed=len(removable) + len(left_over),
        objects_removed=len(keys),
        versions_left=len(chain) - len(removable),
    )


def _lets_go(following: Manifest, now_ms: int, retention_ms: int) -> bool:
    """Whether the version before this one may be removed, with all that this one retired."""
    return following.at_ms <= now_ms - retention_ms and all(
        entry.removable_ms <= now_ms for entry in following.retired
    )


def list_pages(objects: ObjectStore, versions: ManifestVersions) -> list[ObjectInfo]:
    """All pages there are, named by a manifest or not."""
    home = versions.home
    return [
        entry
        for entry in objects.list(home.page_folder)
        if home.find_page_id(entry.key) is not None
    ]


def find_named_pages(newest: Manifest, versions: ManifestVersions, pages: PageStore) -> set[str]:
    """The keys of all pages that the newest or an older version in the chain names."""
    named: set[str] = set()
    waiting = list(newest.pages)
    while waiting:
        ref = waiting.pop()
        named.add(pages.key(ref))
        if ref.level:
            waiting += pages.read(ref).pages
    chain, _ = versions.list_retained()
    for version in chain:
        manifest = versions.find(version)
        if manifest is not None:
            named |= {f"{versions.home.prefix}{entry.key}" for entry in manifest.retired}
    return named
