"""What Apache Kafka's own loader makes of a partition directory, whole or damaged."""

import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from tests.conformance.tools.shell import JavaShell
from tests.conformance.tools.toolchain import Toolchain

LOG_SHELL = "varve.conformance.LogShell"
INDEX_BYTES = "4096"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
SAME = "same"
LOG_STARTS = "log-start-offset-checkpoint"


class Action(StrEnum):
    CUT = "cut"
    FLIP = "flip"
    REMOVE = "remove"
    EXTEND = "extend"


@dataclass(frozen=True, slots=True)
class Damage:
    """One defect of one file: `amount` bytes from the end to cut or flip, or zeros to add."""

    file: str
    action: Action
    amount: int = 0

    def apply(self, partition: Path) -> None:
        path = partition / self.file
        data = path.read_bytes()
        match self.action:
            case Action.CUT:
                path.write_bytes(data[: len(data) - self.amount])
            case Action.FLIP:
                position = len(data) - self.amount
                flipped = bytes([data[position] ^ 0x40])
                path.write_bytes(data[:position] + flipped + data[position + 1 :])
            case Action.REMOVE:
                path.unlink()
            case Action.EXTEND:
                path.write_bytes(data + bytes(self.amount))

    def encode(self) -> dict[str, Any]:
        return asdict(self)


def decode_damage(fields: dict[str, Any]) -> Damage:
    """The defect that `Damage.encode` described."""
    return Damage(fields["file"], Action(fields["action"]), fields["amount"])


@dataclass(frozen=True, slots=True)
class RecoveryCase:
    """A golden partition, the defects put into it, and how its loader is called."""

    golden: str
    partition: str
    damages: Sequence[Damage] = ()
    recovery_point: int | None = None


def recovery_cases(toolchain: Toolchain, goldens: Path) -> list[dict[str, Any]]:
    """Runs Apache Kafka's loader over every case and describes the outcome."""
    with JavaShell(toolchain, LOG_SHELL) as logs:
        return [load(logs, goldens, case) for case in _cases(goldens)]


def load(logs: JavaShell, goldens: Path, case: RecoveryCase) -> dict[str, Any]:
    """Opens a damaged copy with Apache Kafka, closes it, and describes the files left."""
    source = goldens / case.golden / "data"
    clean = (source / ".kafka_cleanshutdown").exists()
    recovery_point = (
        read_checkpoint(source / RECOVERY_POINTS).get(case.partition, 0)
        if case.recovery_point is None
        else case.recovery_point
    )
    log_start_offset = read_checkpoint(source / LOG_STARTS).get(case.partition, 0)
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / case.partition
        shutil.copytree(source / case.partition, copy)
        for damage in case.damages:
            damage.apply(copy)
        report = open_log(
            logs,
            copy,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
        )
        logs.call("close", directory=str(copy))
        files = describe_files(copy, source / case.partition)
    return {
        "golden": case.golden,
        "partition": case.partition,
        "clean": clean,
        "recovery_point": recovery_point,
        "log_start_offset": log_start_offset,
        "damages": [damage.encode() for damage in case.damages],
        "report": report,
        "files": files,
    }


def open_log(
    logs: JavaShell,
    directory: Path,
    *,
    clean: bool,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    configs: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Opens a partition directory with Apache Kafka's UnifiedLog and returns its report."""
    return logs.call(
        "open",
        directory=str(directory),
        clean=clean,
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
        configs=log_configs(directory.name) if configs is None else configs,
    )


def log_configs(partition: str) -> dict[str, str]:
    """The settings a golden partition was written under, as far as loading knows them."""
    return {
        "segment.index.bytes": INDEX_BYTES,
        "index.interval.bytes": INTERVALS.get(partition, "300"),
    }


INTERVALS = {
    "codecs-0": "1024",
    "compacted-0": "200",
    "purged-0": "200",
    "__transaction_state-0": "4096",
}


def describe_files(directory: Path, source: Path) -> dict[str, str]:
    """The live files: `same` as in the source, or the bytes in hex, or a digest of a data file."""
    described: dict[str, str] = {}
    for path in sorted(directory.iterdir()):
        if path.suffix == ".deleted":
            continue
        data = path.read_bytes()
        before = source / path.name
        if before.exists() and before.read_bytes() == data:
            described[path.name] = SAME
        elif path.suffix == ".log":
            described[path.name] = f"sha256:{len(data)}:{hashlib.sha256(data).hexdigest()}"
        else:
            described[path.name] = f"hex:{data.hex()}"
    return described


def read_checkpoint(path: Path) -> dict[str, int]:
    """Offsets by partition directory name."""
    rows = [line.split() for line in path.read_text().splitlines()[2:]]
    return {f"{topic}-{partition}": int(offset) for topic, partition, offset in rows}


def _cases(goldens: Path) -> Iterator[RecoveryCase]:
    for golden in ("clean", "unclean"):
        for directory in sorted((goldens / golden / "data").iterdir()):
            if directory.is_dir():
                yield RecoveryCase(golden, directory.name)
    yield from _damaged_cases(goldens, "idempotent-0")
    yield from _damaged_cases(goldens, "transactions-0")
    yield from _damaged_cases(goldens, "compacted-0")


def _damaged_cases(goldens: Path, partition: str) -> Iterator[RecoveryCase]:
    directory = goldens / "unclean" / "data" / partition
    logs = sorted(path.name for path in directory.glob("*.log") if path.stat().st_size)
    middle, last = Path(logs[len(logs) // 2]).stem, Path(logs[-1]).stem
    cut_tail = Damage(f"{last}.log", Action.CUT, 7)
    middle_flip = Damage(f"{middle}.log", Action.FLIP, 20)
    wrecks: list[list[Damage]] = [
        [cut_tail],
        [Damage(f"{last}.log", Action.CUT, (directory / f"{last}.log").stat().st_size - 30)],
        [Damage(f"{last}.log", Action.EXTEND, 1000)],
        [Damage(f"{last}.log", Action.EXTEND, 17)],
        [Damage(f"{last}.log", Action.FLIP, 20)],
        [middle_flip],
        [Damage(f"{middle}.index", Action.REMOVE)],
        [Damage(f"{middle}.timeindex", Action.REMOVE)],
        [Damage(f"{middle}.index", Action.REMOVE), Damage(f"{middle}.log", Action.FLIP, 20)],
        [Damage(f"{middle}.snapshot", Action.FLIP, 3)],
        [Damage(f"{middle}.log", Action.REMOVE)],
        [Damage(f"{last}.snapshot", Action.REMOVE), cut_tail],
        [Damage("leader-epoch-checkpoint", Action.REMOVE)],
    ]
    for damages in wrecks:
        if all((directory / damage.file).exists() for damage in damages):
            yield RecoveryCase("unclean", partition, damages)
            yield RecoveryCase("unclean", partition, damages, recovery_point=0)
