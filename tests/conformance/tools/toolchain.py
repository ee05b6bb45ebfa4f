"""Java, Maven and Apache Kafka's jars, fetched once into a cache outside the repository's history.

Layout     <cache>/jars-<digest of pom.xml>/*.jar and <cache>/classes-<digest of the sources>/.
Crash      both folders are filled aside and renamed, so a half-filled cache is never used.
"""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

JAVA_SOURCES = Path(__file__).parent / "java"
CONNECT = Path(__file__).parent / "connect"
DEFAULT_CACHE = Path(__file__).parents[3] / ".cache" / "kafka"
JAVA_RELEASE_MINIMUM = 17
FETCH_SECONDS = 600
TOOL_SECONDS = 120
JVM_OPTIONS = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
# Those of the broker's start script, with room for a large offset map; for what is measured.
BROKER_JVM_OPTIONS = (
    "-server",
    "-Xms2g",
    "-Xmx2g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)


class ToolchainMissing(Exception):
    """Java, Maven or Apache Kafka's jars are not to be had; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A Java that runs and a class path holding Apache Kafka and our shells."""

    java: str
    classpath: str
    jvm_options: tuple[str, ...] = JVM_OPTIONS

    def command(self, main_class: str, *arguments: str) -> list[str]:
        """The command line that runs `main_class`, by default with a small heap."""
        return [self.java, *self.jvm_options, "-cp", self.classpath, main_class, *arguments]

    def at_full_speed(self) -> "Toolchain":
        """The same with the options a broker runs under, slower to start, for measurements."""
        return replace(self, jvm_options=BROKER_JVM_OPTIONS)

    def run(
        self, main_class: str, *arguments: str, directory: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs a tool to its end, within `TOOL_SECONDS`; the caller judges the exit status."""
        return subprocess.run(
            self.command(main_class, *arguments),
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=TOOL_SECONDS,
            check=False,
        )


def prepare_toolchain(cache: Path = DEFAULT_CACHE) -> Toolchain:
    """Finds Java, fetches the jars and compiles the shells unless the cache already holds them."""
    java = _find_program("java")
    _check_java_release(java)
    jars = _fetch_jars(cache, JAVA_SOURCES / "pom.xml")
    classes = _compile_shells(cache, jars)
    return Toolchain(java, os.pathsep.join([str(classes), str(jars / "*")]))


def prepare_connect(cache: Path = DEFAULT_CACHE) -> Toolchain:
    """Finds Java and fetches Kafka Connect with Debezium unless the cache already holds it."""
    java = _find_program("java")
    _check_java_release(java)
    return Toolchain(java, str(_fetch_jars(cache, CONNECT / "pom.xml") / "*"))


def fetch_jars(*artifacts: str, cache: Path = DEFAULT_CACHE) -> Path:
    """A folder with the jars of these artifacts alone, without what they depend on."""
    _check_java_release(_find_program("java"))
    jars = cache / f"jars-{hashlib.sha256(' '.join(artifacts).encode()).hexdigest()[:16]}"
    if jars.is_dir():
        return jars
    aside = _fresh_directory(cache, jars.name)
    maven = [_find_program("mvn"), "-q", "-B", "dependency:copy", f"-DoutputDirectory={aside}"]
    for artifact in artifacts:
        _run_or_miss(f"Maven could not fetch {artifact}", [*maven, f"-Dartifact={artifact}"])
    aside.rename(jars)
    return jars


def _find_program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise ToolchainMissing(f"{name} is not on PATH; install a JDK and Maven to run these tests")
    return path


def _check_java_release(java: str) -> None:
    version = subprocess.run(
        [java, "-version"], capture_output=True, text=True, timeout=60, check=False
    ).stderr
    quoted = version.split('"')[1] if version.count('"') >= 2 else ""
    release = quoted.split(".", maxsplit=1)[0]
    if not release.isdigit() or int(release) < JAVA_RELEASE_MINIMUM:
        raise ToolchainMissing(
            f"java reports version {quoted!r}; the broker needs {JAVA_RELEASE_MINIMUM} or newer"
        )


def _digest(paths: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _fetch_jars(cache: Path, pom: Path) -> Path:
    jars = cache / f"jars-{_digest([pom])}"
    if jars.is_dir():
        return jars
    aside = _fresh_directory(cache, jars.name)
    _run_or_miss(
        f"Maven could not fetch what {pom.parent.name}/pom.xml names "
        "(is Maven Central within reach?)",
        [
            _find_program("mvn"),
            "-q",
            "-B",
            "-f",
            str(pom),
            "dependency:copy-dependencies",
            f"-DoutputDirectory={aside}",
        ],
    )
    aside.rename(jars)
    return jars


def _compile_shells(cache: Path, jars: Path) -> Path:
    sources = list(JAVA_SOURCES.rglob("*.java"))
    classes = cache / f"classes-{_digest([*sources, JAVA_SOURCES / 'pom.xml'])}"
    if classes.is_dir():
        return classes
    aside = _fresh_directory(cache, classes.name)
    _run_or_miss(
        "the Java shells do not compile",
        [
            _find_program("javac"),
            "-cp",
            str(jars / "*"),
            "-d",
            str(aside),
            *map(str, sources),
        ],
    )
    aside.rename(classes)
    return classes


def _fresh_directory(cache: Path, name: str) -> Path:
    aside = cache / f"{name}.{os.getpid()}.tmp"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    return aside


def _run_or_miss(what_failed: str, command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ToolchainMissing(f"{what_failed}: no end after {FETCH_SECONDS} s") from error
    if done.returncode != 0:
        tail = (done.stdout + done.stderr).strip()[-500:]
        raise ToolchainMissing(f"{what_failed}: exit status {done.returncode}: {tail}")
