"""Any two activities on a topic at the same time: nothing is lost, damaged or out of reach.

Each activity is stopped before a call of disk or object store while another runs from beginning to
end, or until it waits for the first. `make test` runs some pairs once, those that found a defect
among them; `make crash` runs all, and stops the first before each of its calls, or both.
"""

import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.rounds import IS_LONG
from tests.support.seam_stage import PAIRS, SeamStage
from tests.support.snapshot_topic import IN_MEMORY

_FOUND_DEFECTS: Final = {
    ("clean", "dedup"): 44,
    ("clean", "expire_remote"): 66,
    ("clean", "recreate"): 59,
    ("compact_job", "append"): 1,
    ("erase_bucket", "erase"): 12,
    ("erase_bucket", "recreate"): 67,
    ("evict", "return_to_tier"): 29,
    ("maintain", "recreate"): 195,
    ("snapshot", "maintain"): 31,
    ("snapshot", "recreate"): 18,
    ("table", "recreate"): 59,
    ("table", "table"): 49,
}
"""Pairs, and the call before which the first was stopped."""
_SAMPLE_COUNT: Final = 70
_CHOSEN: Final = (
    PAIRS if IS_LONG else tuple({*_FOUND_DEFECTS, *random.Random(1).sample(PAIRS, _SAMPLE_COUNT)})
)


@pytest.fixture(scope="module", params=["delete", "compact"])
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SeamStage:
    path = tmp_path_factory.mktemp("seams")
    return SeamStage.prepare(path, compacted=request.param == "compact")


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as directory:
        yield Path(directory)


def _run(
    stage: SeamStage, path: Path, first: str, second: str, stop_first: int, stop_second: int = 0
) -> int:
    """The calls of the first activity."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    copy = stage.copy(path)
    try:
        copy.run(first, second, stop_first=stop_first, stop_second=stop_second)
        copy.judge()
    except BaseException as error:
        error.add_note(f"{first} stopped before call {stop_first} for {second} ({stop_second})")
        raise
    finally:
        copy.close()
    return copy.interleaving.steps


@pytest.mark.parametrize(("first", "second"), sorted(_CHOSEN))
def test_two_at_once(stage: SeamStage, path: Path, first: str, second: str) -> None:
    source = random.Random(f"{first} {second}")
    if not IS_LONG:
        step = _FOUND_DEFECTS.get((first, second)) or source.randint(1, 60)
        _run(stage, path, first, second, step)
        return
    step = 1
    while step <= _run(stage, path, first, second, step):
        _run(stage, path, first, second, step, source.randint(1, 60))
        step += 1
