"""What a crash or a failing disk leaves of the cached indexes is right, or fetched again."""

import errno

import pytest

from tests.support.crash_images import crash_images, named, record
from tests.support.index_bench import DIRECTORY, KINDS, IndexBench, file_name
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem
from varve.tiering.read.index_cache import IndexCache

LIMIT_BYTES = 160


def use(tier: IndexBench, cache: IndexCache) -> None:
    """Misses, hits and evictions."""
    cache.load()
    first, second, third, fourth = tier.segments
    tier.use(cache, first, "index")
    for segment in (second, first, third, fourth):
        tier.use(cache, segment)
    tier.use(cache, first, "timeindex")
    tier.use(cache, second)
    for segment in (third, second):
        tier.use(cache, segment, "index", "txnindex")


def open_cache(tier: IndexBench, disk: FaultyFileSystem) -> IndexCache:
    return tier.open(disk=disk, limit_bytes=LIMIT_BYTES, memory_bytes=0)


def count_steps() -> int:
    tier = IndexBench()
    use(tier, open_cache(tier, tier.disk))
    return tier.disk.steps


def check_whole(tier: IndexBench, disk: FaultyFileSystem, cache: IndexCache) -> None:
    """The directory holds whole files within the limit, and nothing besides."""
    sizes = {
        file_name(segment, kind): tier.size(segment, kind)
        for segment in tier.segments
        for kind in KINDS
    }
    held = {file.name: file.size for file in disk.scan(DIRECTORY)}
    assert held == {name: sizes[name] for name in held}
    assert sum(held.values()) == cache.usage().held_bytes <= LIMIT_BYTES


def test_after_a_crash_at_any_step_or_request_every_index_is_right() -> None:
    tier = IndexBench()
    points = record(
        lambda: use(tier, open_cache(tier, tier.disk)),
        lambda: None,
        disk=tier.disk,
        objects=tier.objects,
    )
    for image in crash_images(points):
        with named(image):
            cache = open_cache(tier, image.disk)
            use(tier, cache)
            check_whole(tier, image.disk, cache)


def test_a_killed_process_leaves_what_it_held_to_the_next() -> None:
    tier = IndexBench()
    use(tier, open_cache(tier, tier.disk))
    left = tier.disk.after_crash(CrashMode.KEEP_ALL)
    cache = open_cache(tier, left)
    cache.load()
    check_whole(tier, left, cache)
    tier.objects.go_down()
    tier.use(cache, tier.segments[1], "index", "txnindex")


@pytest.mark.parametrize("is_lasting", [False, True], ids=["once", "lasting"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_disk_that_fails_at_any_step_fails_no_read(code: int, is_lasting: bool) -> None:
    error = OSError(code, "broken")
    for step in range(1, count_steps() + 1):
        tier = IndexBench()
        fail = tier.disk.fail_from if is_lasting else tier.disk.fail_at
        fail(step, error, after_bytes=5)
        use(tier, open_cache(tier, tier.disk))
        tier.disk.mend()
        cache = open_cache(tier, tier.disk)
        use(tier, cache)
        check_whole(tier, tier.disk, cache)
