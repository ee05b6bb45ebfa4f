"""What executors need to run varve's jobs, as one archive that Spark unpacks beside them.

Layout     a tar of packages, as they lie in site-packages, and `varve-ship.json`: the version of
           varve, of Python, the platform, and every package. Its name ends in .tar, .tar.gz, .tgz.
Invariant  an archive fits one minor version of Python and one platform: those it was made with.
           PySpark is not in it: a cluster brings its own.
Crash      written aside and renamed: an archive that is there is whole.
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

SHIP_KEY: Final = "varve.ship"
"""The name that a session's settings give to the path of an archive."""
PYTHON_NAME: Final = f"python{sys.version_info[0]}.{sys.version_info[1]}"
"""What the Python that fits is called where it is installed from packages."""
FOLDER: Final = "varve-env"
"""Where Spark unpacks the archive, in the directory an executor works in."""
MANIFEST: Final = "varve-ship.json"

_SUFFIXES: Final = {".tar": "w", ".tar.gz": "w:gz", ".tgz": "w:gz"}
_CLUSTERS_OWN: Final = frozenset({"pyspark", "py4j"})
_REQUIREMENT: Final = re.compile(r"^([\w.-]+)\s*(?:\[([^]]*)\])?")
_EXTRA: Final = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")
_NEEDLESS_FOLDERS: Final = frozenset({"tests", "include", "__pycache__", "benchmarks", "examples"})
_NEEDLESS_SUFFIXES: Final = frozenset({".a", ".h", ".hpp", ".pyi", ".pxd", ".pyx", ".lib"})
_KERNEL_CACHE: Final = frozenset({".nbi", ".nbc"})
_LEVEL: Final = 3


@dataclass(frozen=True, slots=True)
class Shipment:
    """An archive that was made."""

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
        return shipment_conf(self.path)

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "packages": dict(self.packages), "conf": self.conf}


def ship(output: str) -> Shipment:
    """Makes the archive of the packages that varve needs in this environment.

    Raises NotFound for a package that is required and not installed.
    """
    mode = _mode_of(output)
    distributions = find_packages("varve")
    packages = tuple(sorted((name, one.version) for name, one in distributions.items()))
    about = {
        "varve": varve.__version__,
        "python": _python_version(),
        "platform": sysconfig.get_platform(),
        "packages": dict(packages),
    }
    aside = f"{output}.tmp"
    try:
        options = {"compresslevel": _LEVEL} if mode.endswith("gz") else {}
        with tarfile.open(aside, mode, format=tarfile.PAX_FORMAT, **options) as archive:  # type: ignore[call-overload]  # by suffix
            files = _write(archive, distributions, about)
        os.replace(aside, output)
    finally:
        Path(aside).unlink(missing_ok=True)
    return Shipment(
        os.path.abspath(output),
        varve.__version__,
        _python_version(),
        sysconfig.get_platform(),
        packages,
        files,
        os.path.getsize(output),
    )


def shipment_conf(path: str) -> dict[str, str]:
    """The settings of Spark that give an archive to executors."""
    return {"spark.archives": f"{path}#{FOLDER}", "spark.executorEnv.PYTHONPATH": FOLDER}


def with_shipment(conf: Mapping[str, str]) -> dict[str, str]:
    """Settings of Spark with those that `varve.ship` stands for in its place.

    Raises NotFound where there is no archive, and VersionMismatch where it is of another varve or
    another Python than this process has.
    """
    rest = {name: value for name, value in conf.items() if name != SHIP_KEY}
    path = conf[SHIP_KEY]
    check_archive(path)
    for name, value in shipment_conf(os.path.abspath(path)).items():
        joint = "," if name == "spark.archives" else os.pathsep
        rest[name] = f"{value}{joint}{rest[name]}" if rest.get(name) else value
    return rest


def check_archive(path: str) -> None:
    """Raises where an archive is missing, is none of `varve job ship`, or is not this process's."""
    _mode_of(path)
    try:
        with tarfile.open(path) as archive:
            first = archive.next()
            held = None if first is None or first.name != MANIFEST else archive.extractfile(first)
            about = None if held is None else json.load(held)
    except FileNotFoundError as error:
        raise NotFound(
            f"there is no archive {path!r:.300}: make it with `varve job ship`"
        ) from error
    except (tarfile.TarError, ValueError) as error:
        raise InvalidRequest(f"{path} is not a `varve job ship` archive: {error!s:.200}") from error
    if not isinstance(about, dict):
        raise InvalidRequest(f"{path} is not a `varve job ship` archive: it lacks {MANIFEST}")
    mine = {"varve": varve.__version__, "python": _python_version()}
    for name, version in mine.items():
        if about.get(name) != version:
            raise VersionMismatch(
                f"{path} was made with {name} {about.get(name)!s:.40}, this process has {version}: "
                "make it again with `varve job ship`"
            )


def find_packages(name: str) -> dict[str, Distribution]:
    """A package and all it requires, by name, without what a cluster brings itself."""
    distributions: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(name, "", False)]
    while waiting:
        wanted, extra, is_optional = waiting.pop()
        if (wanted, extra) in seen or wanted in _CLUSTERS_OWN:
            continue
        seen.add((wanted, extra))
        try:
            package = distribution(wanted)
        except PackageNotFoundError as error:
            if is_optional:  # its marker names another Python or platform than this one
                continue
            raise NotFound(
                f"package {wanted} is required and not installed here: install varve with its "
                "dependencies, then ship"
            ) from error
        distributions[wanted] = package
        waiting += _requirements(package, extra)
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
        for one in (matched[2] or "").split(","):
            if one.strip():
                yield name, one.strip(), is_optional


def _write(
    archive: tarfile.TarFile, packages: Mapping[str, Distribution], about: Mapping[str, object]
) -> int:
    manifest = json.dumps(about, indent=1).encode()
    entry = tarfile.TarInfo(MANIFEST)  # the first, so that a check need not read on
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
    """Names in the archive and paths; an editable varve lies elsewhere than its metadata."""
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
        and _NEEDLESS_FOLDERS.isdisjoint(file.parts[:-1])
        and file.suffix not in _NEEDLESS_SUFFIXES
        and not file.name.startswith("__editable__")
    )


def _mode_of(path: str) -> str:
    for suffix, mode in _SUFFIXES.items():
        if path.endswith(suffix):
            return mode
    raise InvalidRequest(
        f"{path!r:.300} must end in {', '.join(_SUFFIXES)}: by that Spark knows how to unpack it"
    )


def _python_version() -> str:
    return f"{sys.version_info[0]}.{sys.version_info[1]}"
