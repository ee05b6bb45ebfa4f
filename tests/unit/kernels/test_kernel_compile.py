"""Caching of compiled kernels, and warming."""

from pathlib import Path
from typing import Any

from varve.kernels import batch_scan, crc
from varve.kernels import compile as compilation
from varve.kernels.__main__ import warm_all


def _stamp_in_use(function: Any) -> object:
    return function._cache._cache_file._source_stamp


def test_cache_entry_depends_on_every_file_a_kernel_is_made_of() -> None:
    names = {path.stem for path in compilation._sources(Path(batch_scan.__file__))}
    assert {"batch_scan", "record_parse", "crc", "varint", "loads", "compile", "status"} == names
    assert _stamp_in_use(batch_scan.scan_batches) == compilation._stamp(Path(batch_scan.__file__))


def test_change_of_an_imported_file_changes_the_stamp(tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text("x = 1\n")
    (tmp_path / "outer.py").write_text("from varve.kernels.inner import x\n")
    before = compilation._stamp(tmp_path / "outer.py")
    (tmp_path / "inner.py").write_text("x = 100\n")
    compilation._stamp.cache_clear()
    assert compilation._stamp(tmp_path / "outer.py") != before


def test_warming_compiles_every_kernel_of_this_room() -> None:
    assert {"batch_scan", "crc", "key_hash", "record_parse"} <= {name for name, _ in warm_all()}
    assert len(batch_scan.inspect_batch.signatures) >= 2  # type: ignore[attr-defined]  # numba's
    assert len(crc.crc32c.signatures) >= 2  # type: ignore[attr-defined]  # numba's
