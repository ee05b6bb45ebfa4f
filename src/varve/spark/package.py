"""An archive of varve and the packages it needs, which Spark unpacks on its executors.

Layout     a tar of packages, as they lie in site-packages, and `varve-package.json`: the version of
           varve, of Python, the platform, and every package. Its name ends in .tar, .tar.gz, .tgz.
Invariant  an archive fits one minor version of Python and one platform: those it was made with.
           PySpark is not in it: a cluster brings its own.
Crash      written under another name and renamed: an existing archive is complete.
"""

import io
import json
import os
import re
import sys
import sysconfig
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path, PurePath
from typing import Final

import varve
from varve.foundation.errors import InvalidRequest, NotFound, VersionMismatch

PACKAGE_KEY: Final = "varve.package"
"""The session setting that has the path of an archive."""
PYTHON_NAME: Final = f"python{sys.version_info[0]}.{sys.version_info[1]}"
"""The command name of a Python that matches the archive."""
FOLDER: Final = "varve-env"
"""The directory of the unpacked archive, in the working directory of an executor."""
MANIFEST: Final = "varve-package.json"

_SUFFIXES: Final = {".tar": "w", ".tar.gz": "w:gz", ".tgz": "w:gz"}
_CLUSTER_PACKAGES: Final = frozenset({"pyspark", "py4j"})
_REQUIREMENT: Final = re.compile(r"^([\w.-]+)\s*(?:\[([^]]*)\])?")
_EXTRA: Final = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")
_EXCLUDED_FOLDERS: Final = frozenset({"tests", "include", "__pycache__", "benchmarks", "examples"})
_EXCLUDED_SUFFIXES: Final = frozenset({".a", ".h", ".hpp", ".pyi", ".pxd", ".pyx", ".lib"})
_KERNEL_CACHE: Final = frozenset({".nbi", ".nbc"})
_GZIP_LEVEL: Final = 3


@dataclass(frozen=True, slots=True)
class ExecutorPackage:
    """A finished archive."""

    path: str
    varve: str
    python: str
    platform: str
    packages: tuple[tuple[str, str], ...]
    files: int
    size: int

    @property
    def conf(self) -> dict[str, str]:
        """The settings of Spark that give it to executors."""
        return package_conf(self.path)

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "packages": dict(self.packages), "conf": self.conf}


def build_package(output: str) -> ExecutorPackage:
    """Writes the archive of varve and the packages it needs in this environment.

    Raises NotFound for a package that is required and not installed.
    """
    mode = _mode_of(output)
    distributions = find_packages("varve", "spark")
    packages = tuple(sorted((name, package.version) for name, package in distributions.items()))
    manifest = {
        "varve": varve.__version__,
        "python": _python_version(),
        "platform": sysconfig.get_platform(),
        "packages": dict(packages),
    }
    temporary_path = f"{output}.tmp"
    try:
        options = {"compresslevel": _GZIP_LEVEL} if mode.endswith("gz") else {}
        with tarfile.open(temporary_path, mode, format=tarfile.PAX_FORMAT, **options) as archive:  # type: ignore[call-overload]  # by suffix
            files = _write(archive, distributions, manifest)
        os.replace(temporary_path, output)
    except FileNotFoundError as error:
        if Path(output).parent.exists():
            raise
        raise NotFound(
            f"{Path(output).parent} does not exist: create it with mkdir, or write elsewhere"
        ) from error
    finally:
        Path(temporary_path).unlink(missing_ok=True)
    return ExecutorPackage(
        os.path.abspath(output),
        varve.__version__,
        _python_version(),
        sysconfig.get_platform(),
        packages,
        files,
        os.path.getsize(output),
    )


def package_conf(path: str) -> dict[str, str]:
    """The settings of Spark that give an archive to executors."""
    return {"spark.archives": f"{path}#{FOLDER}", "spark.executorEnv.PYTHONPATH": FOLDER}


def with_package(conf: Mapping[str, str]) -> dict[str, str]:
    """Spark's settings with `varve.package` replaced by the settings that it stands for.

    Raises NotFound for a missing archive, and VersionMismatch for one of another varve or Python
    than this process has.
    """
    settings = {name: value for name, value in conf.items() if name != PACKAGE_KEY}
    path = conf[PACKAGE_KEY]
    check_archive(path)
    for name, value in package_conf(os.path.abspath(path)).items():
        separator = "," if name == "spark.archives" else os.pathsep
        settings[name] = f"{value}{separator}{settings[name]}" if settings.get(name) else value
    return settings


def check_archive(path: str) -> None:
    """Raises for an archive that is missing, malformed, or of another varve or Python."""
    _mode_of(path)
    try:
        with tarfile.open(path) as archive:
            first = archive.next()
            file = None if first is None or first.name != MANIFEST else archive.extractfile(first)
            manifest = None if file is None else json.load(file)
    except FileNotFoundError as error:
        raise NotFound(
            f"there is no archive {path!r:.300}: make it with `varve job package`"
        ) from error
    except (tarfile.TarError, ValueError) as error:
        raise InvalidRequest(
            f"{path} is not a `varve job package` archive: {error!s:.200}"
        ) from error
    if not isinstance(manifest, dict):
        raise InvalidRequest(f"{path} is not a `varve job package` archive: it lacks {MANIFEST}")
    expected = {"varve": varve.__version__, "python": _python_version()}
    for name, version in expected.items():
        if manifest.get(name) != version:
            raise VersionMismatch(
                f"{path} was made with {name} {manifest.get(name)!s:.40}, this process has "
                f"{version}: make it again with `varve job package`"
            )


def find_packages(name: str, extra: str = "") -> dict[str, Distribution]:
    """A package with an extra and all they require, without the packages of the cluster."""
    distributions: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    pending = [(name, "", False), (name, extra, False)]
    while pending:
        required, extra, is_optional = pending.pop()
        if (required, extra) in seen or required in _CLUSTER_PACKAGES:
            continue
        seen.add((required, extra))
        try:
            package = distribution(required)
        except PackageNotFoundError as error:
            if is_optional:  # its marker may be for another Python or platform
                continue
            raise NotFound(
                f"package {required} is required and not installed here: install varve with its "
                "dependencies, then package it"
            ) from error
        distributions[required] = package
        pending += _requirements(package, extra)
    return distributions


def _requirements(package: Distribution, extra: str) -> Iterator[tuple[str, str, bool]]:
    """Name, extra, and whether a marker may leave it out."""
    for text in package.requires or []:
        requirement, _, marker = text.partition(";")
        needs_extra = _EXTRA.search(marker)
        if needs_extra and needs_extra[1] != extra:
            continue
        matched = _REQUIREMENT.match(requirement.strip())
        if matched is None:
            continue
        name = re.sub(r"[-_.]+", "-", matched[1]).lower()
        is_optional = bool(marker.strip()) and needs_extra is None
        yield name, "", is_optional
        for extra_name in (matched[2] or "").split(","):
            if extra_name.strip():
                yield name, extra_name.strip(), is_optional


def _write(
    archive: tarfile.TarFile, packages: Mapping[str, Distribution], content: Mapping[str, object]
) -> int:
    manifest = json.dumps(content, indent=1).encode()
    entry = tarfile.TarInfo(MANIFEST)  # first, so that a check need not read further
    entry.size = len(manifest)
    archive.addfile(entry, io.BytesIO(manifest))
    names: set[str] = set()
    for package in packages.values():
        for name, path in _files(package):
            if name not in names:
                names.add(name)
                archive.add(path, arcname=name, recursive=False)
    return len(names) + 1


def _files(package: Distribution) -> Iterator[tuple[str, str]]:
    """Names in the archive and paths; the files of an editable varve are not in its metadata."""
    for file in package.files or []:
        path = Path(str(package.locate_file(file)))
        if _is_needed(file) and path.is_file():
            yield str(file), str(path)
    if package.name == "varve":
        home = Path(varve.__file__).parent
        for path in sorted(home.rglob("*")):
            name = PurePath("varve") / path.relative_to(home)
            if path.is_file() and (_is_needed(name) or path.suffix in _KERNEL_CACHE):
                yield str(name), str(path)


def _is_needed(file: PurePath) -> bool:
    return (
        not file.is_absolute()
        and ".." not in file.parts
        and _EXCLUDED_FOLDERS.isdisjoint(file.parts[:-1])
        and file.suffix not in _EXCLUDED_SUFFIXES
        and not file.name.startswith("__editable__")
    )


def _mode_of(path: str) -> str:
    for suffix, mode in _SUFFIXES.items():
        if path.endswith(suffix):
            return mode
    raise InvalidRequest(
        f"{path!r:.300} must end in {', '.join(_SUFFIXES)}: Spark unpacks it by this suffix"
    )


def _python_version() -> str:
    return f"{sys.version_info[0]}.{sys.version_info[1]}"
