"""Every OSError gets one meaning and one remedy, wherever it occurs."""

import errno

import pytest

from varve.disk import DiskProblem, classify_error, to_store_error
from varve.foundation.errors import DiskFull, Unavailable


@pytest.mark.parametrize(
    ("number", "problem"),
    [
        (errno.ENOSPC, DiskProblem.FULL),
        (errno.EDQUOT, DiskProblem.FULL),
        (errno.EMFILE, DiskProblem.NO_DESCRIPTORS),
        (errno.ENFILE, DiskProblem.NO_DESCRIPTORS),
        (errno.EFBIG, DiskProblem.FILE_TOO_LARGE),
        (errno.EROFS, DiskProblem.DENIED),
        (errno.ENOTDIR, DiskProblem.WRONG_KIND),
        (errno.EIO, DiskProblem.BROKEN),
        (errno.ENODEV, DiskProblem.BROKEN),
        (None, DiskProblem.BROKEN),
    ],
)
def test_an_error_is_sorted_by_its_number(number: int | None, problem: DiskProblem) -> None:
    error = OSError() if number is None else OSError(number, "reason")
    assert classify_error(error) is problem


def test_a_full_disk_is_an_error_of_its_own() -> None:
    error = to_store_error(OSError(errno.ENOSPC, "No space left", "/d/f"), "write of the ledger")
    assert type(error) is DiskFull
    assert str(error) == "write of the ledger: /d/f: No space left; free some space and try again"


def test_other_errors_name_the_path_the_remedy_and_what_follows() -> None:
    error = to_store_error(
        OSError(errno.EMFILE, "Too many open files"), "open", path="/d", then="open it again"
    )
    assert type(error) is Unavailable
    assert str(error) == (
        "open: /d: Too many open files; raise the limit on open files (ulimit -n) and open it again"
    )
