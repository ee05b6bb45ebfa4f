"""What a log has left when a new leader cut it does not supersede what it still has: G1, G4."""

from tests.support.cleaning_bench import PARTITION, TOPIC_ID
from tests.support.remote_compaction import RemoteCompaction
from tests.support.tier_bench import TierBench, tiered
from varve.commit_log.directory_files import encode_partition_metadata
from varve.commit_log.leader_epochs import LeaderEpochs
from varve.disk import MemoryFileSystem
from varve.jobs.compact.cleanable import find_history, is_truncated


def make() -> RemoteCompaction:
    """Segments [0, 4) and [4, 8) of the same keys; the log is cut at 4 and goes on in epoch 4."""
    remote = RemoteCompaction(TierBench(tiered()))
    remote.bench.fill(4, 4)
    remote.copy()
    log = remote.hot.log
    data = bytes(log.read(start_offset=0, max_bytes=1).data)
    log.truncate_to(4)
    log.append(data, leader_epoch=4)
    return remote


def offsets(remote: RemoteCompaction) -> list[int]:
    return [one.offset for batch in remote.batches() for one in batch.records]


def test_with_the_epochs_of_the_log_nothing_is_removed_for_the_sake_of_what_it_left() -> None:
    remote = make()
    remote.epochs = remote.hot.log.epochs
    result = remote.compact()
    assert result.error is None
    assert "not compacted" in result.note
    assert result.cleaned_up_to == 4
    assert offsets(remote)[:4] == [0, 1, 2, 3]


def test_where_a_later_leader_was_at_work_the_bucket_alone_waits_for_its_copy() -> None:
    remote = make()
    remote.bench.manifests().commit(
        lambda manifest: manifest.raise_log_start(1),
        leader_epoch=4,
        writer="expiry",
        now_ms=remote.hot.now_ms,
    )
    result = remote.compact()
    assert "leader of epoch 4" in result.note
    assert (result.segments_rewritten, result.cleaned_up_to) == (0, 0)
    remote.epochs = remote.hot.log.epochs
    assert remote.compact().cleaned_up_to == 4


def test_of_a_leader_that_wrote_nothing_yet_the_bucket_cannot_know() -> None:
    """The limit that docs/how-to/compact-a-bucket.md names: such a run needs the log directory."""
    remote = make()
    remote.compact()
    assert offsets(remote) == [4, 5, 6, 7]


def test_once_the_log_is_copied_again_the_bucket_tells_by_itself() -> None:
    remote = make()
    remote.hot.roll()
    remote.copy()
    assert [one.base_offset for one in remote.bench.readable()] == [0, 4]
    result = remote.compact()
    assert result.error is None
    assert {1, 2, 3} <= set(offsets(remote))


def test_a_history_that_forgot_old_epochs_leaves_nothing_of_them() -> None:
    remote = RemoteCompaction(TierBench(tiered()))
    remote.bench.fill(4, 4)
    remote.copy()
    first, second = remote.bench.readable()
    assert not is_truncated(first, ((5, 4),))
    assert is_truncated(second, ((5, 4),))
    assert not is_truncated(second, ((0, 0), (5, 8)))
    assert is_truncated(second, ((0, 0), (5, 6)))


def test_the_epochs_are_read_beside_the_log_of_the_same_topic_id() -> None:
    remote = make()
    home, fs = remote.bench.home, MemoryFileSystem(remote.hot.clock)
    path = f"data/{PARTITION}"
    for directory in ("data", path):
        fs.make_directory(directory)
    assert find_history(fs, "data", home) is None
    epochs = LeaderEpochs()
    epochs.assign(4, 4)
    files = {
        "partition.metadata": encode_partition_metadata(TOPIC_ID),
        "leader-epoch-checkpoint": epochs.encode(),
    }
    for name, content in files.items():
        with fs.open_writable(f"{path}/{name}") as file:
            file.write_at(0, content)
    assert find_history(fs, "data", home) == ((4, 4),)
