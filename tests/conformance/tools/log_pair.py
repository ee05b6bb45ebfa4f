"""A varve log and an Apache Kafka log that take the same steps, and must stay the same."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.conformance.tools.log_script import (
    Append,
    Flush,
    RaiseLogStart,
    Reopen,
    Roll,
    Step,
    Truncate,
)
from tests.conformance.tools.our_log import (
    live_files,
    open_ours,
    report_ours,
    shorten,
    stray_snapshots,
)
from tests.conformance.tools.recovery import open_log
from tests.conformance.tools.shell import JavaShell, to_text
from varve.commit_log import AppendOrigin, LogAppendResult
from varve.commit_log.leader_epochs import LeaderEpochs
from varve.commit_log.names import LEADER_EPOCH_FILE, SNAPSHOT, log_name
from varve.foundation.errors import (
    CoordinatorFenced,
    Corrupt,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTransactionState,
    OutOfOrderSequence,
    RecordTooLarge,
    StoreError,
)

ERROR_NAMES: Final[Mapping[type[StoreError], tuple[str, ...]]] = {
    OutOfOrderSequence: ("OutOfOrderSequenceException",),
    InvalidProducerEpoch: ("InvalidProducerEpochException",),
    InvalidTransactionState: ("InvalidTxnStateException",),
    CoordinatorFenced: ("TransactionCoordinatorFencedException",),
    RecordTooLarge: ("RecordTooLargeException", "RecordBatchTooLargeException"),
    InvalidRecord: ("InvalidRecordException", "RecordValidationException"),
    Corrupt: ("CorruptRecordException",),
}
ORIGINS: Final = {"CLIENT": AppendOrigin.CLIENT, "COORDINATOR": AppendOrigin.COORDINATOR}
# Kafka flushes rolled segments in the background, so its recovery point depends on the moment.
UNSTABLE: Final = ("recovery_point",)


class Disagreement(AssertionError):
    """The two logs came apart; the message says in what."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    first_offset: int = -1
    last_offset: int = -1
    is_duplicate: bool = False
    error: StoreError | None = None

    @property
    def wrote_nothing(self) -> bool:
        return self.is_duplicate or self.error is not None


class LogPair:
    """Two partition directories of one name below `home`, one per implementation."""

    def __init__(
        self,
        kafka: JavaShell,
        home: Path,
        *,
        configs: Mapping[str, str],
        now_ms: int,
        ignored_suffixes: Sequence[str] = (),
    ) -> None:
        self._kafka = kafka
        self._configs = configs
        self._now_ms = now_ms
        self._ignored_suffixes = tuple(ignored_suffixes)
        self._recovery_point = 0
        self.ours = home / "ours" / "topic-0"
        self.theirs = home / "theirs" / "topic-0"
        for directory in (self.ours, self.theirs):
            directory.mkdir(parents=True)
        self._open(clean=True, log_start_offset=0)

    @property
    def log_start_offset(self) -> int:
        return self._log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self._log.end_offset

    def take(self, step: Step) -> None:
        """Takes a step on both sides; raises Disagreement where they come apart."""
        match step:
            case Append():
                self._append(step)
            case Truncate(offset):
                self._log.truncate_to(offset)
                self._call("truncate", offset=offset)
                self._recovery_point = min(self._recovery_point, offset)
            case RaiseLogStart(offset):
                self._log.delete_records(offset)
                self._call("raise_log_start", offset=offset)
            case Roll():
                self._log.roll()
                self._call("roll")
            case Flush():
                self._log.flush()
                self._call("flush")
                self._recovery_point = self._log.end_offset
            case Reopen(clean):
                self._reopen(clean=clean)
        self._compare()

    def close(self) -> None:
        """Closes both logs in good order and compares every file they leave."""
        self._log.close()
        self._call("close")
        _agree("file", self._telling_files(self.ours), self._telling_files(self.theirs))

    def _telling_files(self, directory: Path) -> dict[str, Any]:
        """Without what one side makes and the other not: empty indexes, needless snapshots."""
        files: dict[str, Any] = {
            name: content
            for name, content in live_files(directory).items()
            if content != b"" and not name.endswith((*self._ignored_suffixes, ".tmp"))
        }
        for name in stray_snapshots(directory):
            del files[name]
        for base in range(self._log.log_start_offset + 1):
            files.pop(log_name(base, SNAPSHOT), None)
        # Kafka notes the epoch of a batch before it refuses it; loading forgets such an entry.
        epochs = LeaderEpochs.decode(files.get(LEADER_EPOCH_FILE, b""))
        epochs.truncate_from_end(self._log.end_offset)
        files[LEADER_EPOCH_FILE] = epochs.entries
        return files

    def _append(self, step: Append) -> None:
        answer = self._kafka.try_call(
            "append",
            directory=str(self.theirs),
            batch=to_text(step.batch),
            origin=step.origin,
            leader_epoch=step.leader_epoch,
        )
        ours = self._append_ours(step)
        if ours.error is not None:
            if answer.get("error") not in ERROR_NAMES[type(ours.error)]:
                raise Disagreement(f"append: varve {ours.error!r}, Kafka {answer}")
        elif (ours.first_offset, ours.last_offset) != (
            answer.get("first_offset"),
            answer.get("last_offset"),
        ):
            raise Disagreement(f"append: varve {ours}, Kafka {answer}")
        self._call("raise_high_watermark", offset=self._log.end_offset)
        if ours.wrote_nothing:
            self._follow_roll()

    def _follow_roll(self) -> None:
        """Kafka rolls before it asks about the producer, varve after; neither loses anything."""
        segments = self._call("report")["segments"]
        if segments[-1]["base_offset"] > list(self._log.view)[-1].base_offset:
            self._log.roll()

    def _append_ours(self, step: Append) -> _Outcome:
        try:
            result: LogAppendResult | None
            if step.origin == "REPLICATION":
                result = self._log.append_replicated(step.batch)
            else:
                result = self._log.append(
                    step.batch, origin=ORIGINS[step.origin], leader_epoch=step.leader_epoch
                )
        except StoreError as error:
            return _Outcome(error=error)
        assert result is not None
        return _Outcome(result.base_offset, result.last_offset, result.is_duplicate)

    def _reopen(self, *, clean: bool) -> None:
        log_start_offset = self._log.log_start_offset
        if clean:
            self.close()
            self._recovery_point = self._log.end_offset
        else:
            self._log.abandon()
            self._call("abandon")
        self._open(clean=clean, log_start_offset=log_start_offset)

    def _open(self, *, clean: bool, log_start_offset: int) -> None:
        self._log = open_ours(
            self.ours,
            clean=clean,
            recovery_point=self._recovery_point,
            log_start_offset=log_start_offset,
            configs=self._configs,
            now_ms=self._now_ms,
        )
        open_log(
            self._kafka,
            self.theirs,
            clean=clean,
            recovery_point=self._recovery_point,
            log_start_offset=log_start_offset,
            configs=self._configs,
        )
        self._call("raise_high_watermark", offset=self._log.end_offset)

    def _compare(self) -> None:
        theirs = self._call("report")
        _agree("report", _stable(report_ours(self._log)), _stable(shorten(theirs)))
        stable = {"offset": self._log.last_stable_offset}
        # A transaction from before the log start offset makes Kafka name the start of the batch
        # there, or the next one.
        if stable["offset"] > self._log.log_start_offset:
            _agree("last stable", stable, {"offset": theirs["last_stable_offset"]})
        bases = [segment["base_offset"] for segment in theirs["segments"]]
        # Kafka looks into one segment only, in vain if the log start offset lies behind it.
        if len(bases) == 1 or bases[1] > theirs["log_start_offset"]:
            self._compare_time(self._now_ms + len(bases) * 500)

    def _compare_time(self, timestamp: int) -> None:
        theirs = self._call("for_time", timestamp=timestamp)
        found = self._log.find_offset_by_time(timestamp)
        ours = {"offset": -1, "timestamp": -1}
        if found is not None:
            ours = {"offset": found.offset, "timestamp": found.timestamp}
        _agree(f"first record since {timestamp}", ours, theirs)

    def _call(self, operation: str, **arguments: object) -> dict[str, Any]:
        return self._kafka.call(operation, directory=str(self.theirs), **arguments)


def _stable(report: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in report.items() if name not in UNSTABLE}


def _agree(what: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    for name in sorted({*ours, *theirs}):
        if ours.get(name) != theirs.get(name):
            raise Disagreement(
                f"{what} {name}: varve {ours.get(name)!r}, Kafka {theirs.get(name)!r}"
            )
