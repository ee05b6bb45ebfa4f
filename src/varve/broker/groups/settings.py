"""Settings of groups and of the offsets they commit, by Kafka's names."""

from dataclasses import dataclass

from varve.broker.groups.consumer_assignment import ASSIGNORS
from varve.foundation.errors import InvalidSetting
from varve.foundation.settings import check_settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Limits of members, and how long committed offsets are kept."""

    offsets_topic_num_partitions: int = setting(
        8,
        "Partitions of __consumer_offsets when it is made; it must not change afterwards.",
        "offsets.topic.num.partitions",
        at_least=1,
    )
    offsets_topic_segment_bytes: int = setting(
        100 << 20,
        "Segment size of __consumer_offsets when it is made.",
        "offsets.topic.segment.bytes",
        at_least=1024,
    )
    offsets_retention_minutes: int = setting(
        10_080,
        "How long offsets are kept once their group is empty, or no longer reads the topic.",
        "offsets.retention.minutes",
        at_least=1,
    )
    offsets_retention_check_interval_ms: int = setting(
        600_000,
        "How often offsets past their retention are looked for.",
        "offsets.retention.check.interval.ms",
        at_least=1,
        long=True,
    )
    offset_metadata_max_bytes: int = setting(
        4096,
        "The longest text that may be committed beside an offset.",
        "offset.metadata.max.bytes",
        at_least=0,
    )
    group_min_session_timeout_ms: int = setting(
        6_000,
        "The shortest session timeout a member may ask for.",
        "group.min.session.timeout.ms",
        at_least=0,
    )
    group_max_session_timeout_ms: int = setting(
        1_800_000,
        "The longest session timeout a member may ask for.",
        "group.max.session.timeout.ms",
        at_least=0,
    )
    group_initial_rebalance_delay_ms: int = setting(
        3_000,
        "How long the first rebalance of an empty group waits for more members.",
        "group.initial.rebalance.delay.ms",
        at_least=0,
    )
    group_max_size: int = setting(
        (1 << 31) - 1, "The most members of one group.", "group.max.size", at_least=1
    )
    group_consumer_session_timeout_ms: int = setting(
        45_000,
        "How long a member of a consumer group may be silent before it is removed.",
        "group.consumer.session.timeout.ms",
        at_least=1,
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        5_000,
        "How often members of consumer groups are to send heartbeats.",
        "group.consumer.heartbeat.interval.ms",
        at_least=1,
    )
    group_consumer_max_size: int = setting(
        (1 << 31) - 1,
        "The most members of one consumer group.",
        "group.consumer.max.size",
        at_least=1,
    )
    group_consumer_assignors: str = setting(
        "uniform,range",
        "Assignors that members of consumer groups may ask for; the first serves those who do not.",
        "group.consumer.assignors",
    )

    @property
    def consumer_assignors(self) -> tuple[str, ...]:
        return tuple(one.strip() for one in self.group_consumer_assignors.split(","))

    def __post_init__(self) -> None:
        check_settings(self)
        self._check_consumer_groups()
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise InvalidSetting(
                f"group.min.session.timeout.ms = {self.group_min_session_timeout_ms} exceeds "
                f"group.max.session.timeout.ms = {self.group_max_session_timeout_ms}"
            )

    def _check_consumer_groups(self) -> None:
        unknown = [one for one in self.consumer_assignors if one not in ASSIGNORS]
        if unknown:
            raise InvalidSetting(
                f"group.consumer.assignors = {self.group_consumer_assignors!r} names "
                f"{unknown[0]!r}; known are {', '.join(ASSIGNORS)}"
            )
        interval_ms = self.group_consumer_heartbeat_interval_ms
        if interval_ms >= self.group_consumer_session_timeout_ms:
            raise InvalidSetting(
                f"group.consumer.heartbeat.interval.ms = {interval_ms} must be less than "
                "group.consumer.session.timeout.ms = "
                f"{self.group_consumer_session_timeout_ms}"
            )
