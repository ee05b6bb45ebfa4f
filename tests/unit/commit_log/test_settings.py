import pytest

from varve.commit_log.settings import LogSettings, StoreSettings
from varve.foundation.errors import InvalidSetting
from varve.foundation.settings import LONG_MAX, declared, parse_settings


@pytest.mark.parametrize("settings", [LogSettings, StoreSettings])
def test_field_names_are_kafkas_names_with_underscores(
    settings: type[LogSettings] | type[StoreSettings],
) -> None:
    for declaration in declared(settings):
        assert declaration.name == declaration.kafka_name.replace(".", "_")
        assert declaration.help.endswith(".")


def test_defaults_are_kafkas() -> None:
    settings = LogSettings()
    assert settings.segment_bytes == 1_073_741_824
    assert settings.segment_ms == 7 * 24 * 3_600_000
    assert settings.segment_index_bytes == 10_485_760
    assert settings.max_message_bytes == 1_048_588
    assert settings.flush_messages == settings.flush_ms == LONG_MAX
    assert settings.cleanup_policy == ("delete",)
    assert not settings.syncs_every_append
    assert (settings.retention_ms, settings.retention_bytes) == (7 * 24 * 3_600_000, -1)
    assert settings.min_cleanable_dirty_ratio == 0.5
    assert settings.delete_retention_ms == 24 * 3_600_000
    assert (settings.min_compaction_lag_ms, settings.max_compaction_lag_ms) == (0, LONG_MAX)
    assert StoreSettings().producer_id_expiration_ms == 24 * 3_600_000


def test_policies_are_read_in_any_case_and_order() -> None:
    settings = parse_settings(LogSettings, {"cleanup.policy": "Delete,COMPACT"})
    assert settings.is_compacted
    assert settings.cleanup_policy == ("delete", "compact")


def test_flush_ack_asks_for_a_sync_of_every_append() -> None:
    assert parse_settings(LogSettings, {"flush": "ack"}).syncs_every_append


@pytest.mark.parametrize(
    "values",
    [
        {"segment.bytes": 13},
        {"segment.ms": 0},
        {"segment.index.bytes": 3},
        {"compression.gzip.level": 10},
        {"compression.lz4.level": 18},
        {"compression.zstd.level": 23},
        {"compression.type": "brotli"},
        {"message.timestamp.type": "createtime"},
        {"flush": "never"},
        {"retention.ms": -2},
        {"retention.time": "wall"},
        {"min.cleanable.dirty.ratio": "1.01"},
        {"min.cleanable.dirty.ratio": "-0.1"},
        {"min.cleanable.dirty.ratio": "nan"},
        {"min.stale.ratio": 2},
        {"delete.retention.ms": -1},
        {"min.compaction.lag.ms": -1},
        {"min.compaction.lag.ms": 11, "max.compaction.lag.ms": 10},
    ],
)
def test_values_outside_kafkas_ranges_are_refused(values: dict[str, int | str]) -> None:
    with pytest.raises(InvalidSetting):
        parse_settings(LogSettings, values)


def test_equal_compaction_lags_are_fine() -> None:
    lags = {"min.compaction.lag.ms": 10, "max.compaction.lag.ms": 10}
    assert parse_settings(LogSettings, lags).min_compaction_lag_ms == 10


def test_any_negative_retention_bytes_means_no_limit() -> None:
    assert parse_settings(LogSettings, {"retention.bytes": -5}).retention_bytes == -5
