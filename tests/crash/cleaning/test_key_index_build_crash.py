"""A build that ends at any step leaves no key index, the old one, or the whole new one."""

import errno
import os
import re

import pytest

from tests.crash.bench import crash_modes
from tests.support.crash_images import crash_images, named, record
from tests.support.key_model import DIRECTORY, TOPIC_ID, check_index, model_of, write_segment
from tests.support.key_writer import KeyWriter
from varve.cleaning.key_index.builder import build_key_index
from varve.cleaning.key_index.key_index import open_key_index
from varve.commit_log import SegmentFiles
from varve.commit_log.names import KEYS, LOG, log_name
from varve.commit_log.segment import Segment
from varve.disk import FileSystem
from varve.foundation.clock import ManualClock
from varve.testing.faulty_disk import FaultyFileSystem

SPILLING, IN_MEMORY = 1 << 13, 1 << 20
WRITER = KeyWriter(4, key_count=100_000).write(16)
MODEL = model_of(WRITER.base_offset, WRITER.batches, WRITER.aborted)


def _segment(fs: FileSystem) -> Segment:
    size = sum(map(len, WRITER.batches))
    return Segment(SegmentFiles(fs), DIRECTORY, base_offset=WRITER.base_offset, size=size)


def _build(fs: FileSystem, buffer_bytes: int) -> None:
    aborted = WRITER.aborted
    build_key_index(fs, _segment(fs), topic_id=TOPIC_ID, aborted=aborted, buffer_bytes=buffer_bytes)


def _prepared(has_old: bool) -> FaultyFileSystem:
    """A disk with the data file and perhaps the index of what it held before."""
    fs = FaultyFileSystem(ManualClock())
    if has_old:
        old = write_segment(fs, WRITER.base_offset, WRITER.batches[:5])
        build_key_index(fs, old, topic_id=TOPIC_ID, aborted=WRITER.aborted)
    write_segment(fs, WRITER.base_offset, WRITER.batches)
    return fs


def _is_there(fs: FileSystem) -> bool:
    """Whether there is an index; one that is there is whole."""
    index = open_key_index(fs, _segment(fs), topic_id=TOPIC_ID)
    if index is None:
        return False
    with index:
        check_index(index, MODEL)
    return True


def test_the_small_buffer_makes_runs() -> None:
    fs = _prepared(False)
    _build(fs, SPILLING)
    assert sum(step.operation == "write" and ".run" in step.path for step in fs.trace) > 1


def _steps(buffer_bytes: int, has_old: bool) -> range:
    fs = _prepared(has_old)
    first = fs.steps + 1
    _build(fs, buffer_bytes)
    return range(first, fs.steps + 1)


@pytest.mark.parametrize("buffer_bytes", [SPILLING, IN_MEMORY])
@pytest.mark.parametrize("has_old", [False, True])
def test_a_crash_at_any_step_leaves_no_index_or_a_whole_one(
    buffer_bytes: int, has_old: bool, rounds_factor: int
) -> None:
    fs = _prepared(has_old)
    points = record(lambda: _build(fs, buffer_bytes), lambda: None, disk=fs)
    for image in crash_images(points, lambda step: crash_modes(step, rounds_factor)):
        with named(image):
            _is_there(image.disk)
            _build(image.disk, IN_MEMORY)
            assert _is_there(image.disk)


def test_a_finished_build_survives_power_loss_at_once() -> None:
    fs = _prepared(False)
    _build(fs, SPILLING)
    for mode, seed in crash_modes(1, 3):
        after = fs.after_crash(mode, seed)
        assert _is_there(after)
        names = [log_name(WRITER.base_offset, kind) for kind in (KEYS, LOG)]
        assert after.names(DIRECTORY) == names


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("has_old", [False, True])
def test_a_failing_call_leaves_nothing_aside(code: int, has_old: bool) -> None:
    for step in _steps(SPILLING, has_old):
        fs = _prepared(has_old)
        before = fs.names(DIRECTORY)
        fs.fail_at(step, OSError(code, os.strerror(code)))
        with pytest.raises(OSError, match=re.escape(os.strerror(code))):
            _build(fs, SPILLING)
        keys = log_name(WRITER.base_offset, KEYS)
        assert set(fs.names(DIRECTORY)) in (set(before), {*before, keys}), fs.trace[step - 1]
        _is_there(fs)
        _build(fs, SPILLING)
        assert _is_there(fs)
