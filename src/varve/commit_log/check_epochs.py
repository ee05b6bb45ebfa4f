"""Compares the history of leader epochs with the batches that were written under them."""

from typing import Final

import numpy as np

from varve.commit_log.checkpoints import decode_checkpoint
from varve.commit_log.finding import FindingList
from varve.commit_log.leader_epochs import LeaderEpochs
from varve.commit_log.segment_reader import BatchTable
from varve.disk import FileSystem
from varve.foundation.errors import Corrupt
from varve.kernels.batch_layout import BatchColumn

REBUILD_EPOCHS: Final = "rebuild the history from the batches"


class EpochCheck:
    """The stored history, and the one that the batches tell."""

    def __init__(
        self, found: FindingList, path: str, stored: LeaderEpochs | None, log_start_offset: int
    ) -> None:
        self._found = found
        self._path = path
        self._stored = stored
        self._log_start_offset = log_start_offset
        self._latest = -1
        self.rebuilt = LeaderEpochs()

    def observe(self, table: BatchTable, path: str) -> None:
        """Takes the table's batches run by run of one epoch."""
        epochs = table.rows[:, BatchColumn.LEADER_EPOCH]
        starts = np.flatnonzero(np.diff(epochs, prepend=epochs[0] - 1))
        ends = np.append(starts[1:], len(epochs)) - 1
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            epoch = int(epochs[start])
            if epoch < 0:
                continue
            first = int(table.rows[start, BatchColumn.BASE_OFFSET])
            last = int(table.rows[end, BatchColumn.LAST_OFFSET])
            if epoch < self._latest:
                message = f"leader epoch {epoch} at offset {first} comes after {self._latest}"
                position = int(table.rows[start, BatchColumn.POSITION])
                self._found.warning(path, "epoch-descends", message, position=position)
            else:
                self._assign(epoch, first)
                self._compare(epoch, first, last)

    def _assign(self, epoch: int, first: int) -> None:
        if epoch > self._latest and first >= 0:
            self.rebuilt.assign(epoch, first)
            self._latest = epoch

    def _compare(self, epoch: int, first: int, last: int) -> None:
        stored = self._stored
        if stored is None or last < self._log_start_offset:
            return
        for offset in (max(first, self._log_start_offset), last):
            known = stored.epoch_for_offset(offset)
            if known is None:
                message = f"no epoch for offset {offset}, written in epoch {epoch}"
                self._found.warning(self._path, "epochs-incomplete", message, repair=REBUILD_EPOCHS)
                return
            if known != epoch:
                message = f"epoch {known} for offset {offset}, written in epoch {epoch}"
                self._found.error(self._path, "epochs-untrue", message, repair=REBUILD_EPOCHS)
                return

    def finish(self, end_offset: int) -> None:
        if self._stored is None:
            if self.rebuilt.entries and not self._found.has("epochs-corrupt", self._path):
                message = "no history of leader epochs, but batches that have one"
                self._found.warning(self._path, "missing-epochs", message, repair=REBUILD_EPOCHS)
            return
        for entry in self._stored.entries:
            if entry.start_offset > end_offset:
                message = f"epoch {entry.epoch} begins at offset {entry.start_offset}, the log "
                message += f"ends at {end_offset}"
                self._found.warning(
                    self._path, "epochs-beyond-end", message, repair="drop the epoch"
                )


def read_epochs(fs: FileSystem, path: str, found: FindingList) -> LeaderEpochs | None:
    """The stored history; None when there is none to compare with, which is then noted."""
    try:
        data = fs.read(path)
    except FileNotFoundError:
        return None
    try:
        epochs = LeaderEpochs.decode(data, where=path)
        line_count = len(decode_checkpoint(data, path))
    except Corrupt as error:
        message = str(error).removeprefix(f"{path}: ")
        found.error(path, "epochs-corrupt", message, repair=REBUILD_EPOCHS)
        return None
    if len(epochs.entries) != line_count:
        message = "epochs or their start offsets do not ascend"
        found.error(path, "epochs-order", message, repair=REBUILD_EPOCHS)
    return epochs
