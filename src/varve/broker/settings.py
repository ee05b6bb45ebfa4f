"""Settings of the broker, by Kafka's names, and the replication configs that clients see."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from varve.broker.groups.assignors import ASSIGNORS
from varve.foundation.errors import InvalidSetting
from varve.foundation.settings import check_settings, parse_settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class _CheckedSettings:
    """Settings without a check beyond their declarations."""

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings(_CheckedSettings):
    """Settings of the broker as a whole, of topics and of fetches."""

    node_id: int = setting(
        1, "The id of this broker in the metadata that clients read.", at_least=0
    )
    num_partitions: int = setting(
        1, "Partitions of a topic that is created without a partition count.", at_least=1
    )
    auto_create_topics_enable: bool = setting(
        True, "Whether a missing topic is created when a client names it in a Metadata request."
    )
    delete_topic_enable: bool = setting(True, "Whether clients may delete topics.")
    rack: str = setting("", "The rack of this broker, as clients see it.", kafka_name="broker.rack")
    fetch_max_bytes: int = setting(
        16 << 20,
        "Limit of the bytes in one fetch response; its first batch may exceed it.",
        at_least=1024,
    )
    response_max_bytes: int = setting(
        32 << 20,
        "Limit of the bytes in an answer that describes ACLs, configs, groups, offsets of groups "
        "or producers; a request with a larger one is refused.",
        kafka_name="varve.response.max.bytes",
        at_least=1024,
    )
    fetch_session_count_max: int = setting(
        1_000,
        "Limit of fetch sessions; a client without one names all partitions in each fetch.",
        kafka_name="max.incremental.fetch.session.cache.slots",
        at_least=0,
    )
    fetch_session_partition_count_max: int = setting(
        200_000,
        "Limit of the partitions in all fetch sessions together.",
        kafka_name="varve.fetch.session.partitions.max",
        at_least=0,
    )
    background_read_max_bytes: int = setting(
        64 << 20,
        "Limit of the bytes that background reads of older segments hold for fetches.",
        kafka_name="varve.fetch.background.read.max.bytes",
        at_least=1 << 20,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationSettings(_CheckedSettings):
    """Replication configs that clients may give a topic: only values that hold for one replica.

    They are checked and not stored.
    """

    min_insync_replicas: int = setting(
        1,
        "Replicas that must have a record before acks=all is answered; there is one replica.",
        broker_name="min.insync.replicas",
        at_least=1,
        at_most=1,
    )
    unclean_leader_election_enable: str = setting(
        "false",
        "Whether an out-of-sync replica may become leader; there is one replica.",
        broker_name="unclean.leader.election.enable",
        choices=("false",),
        ignore_case=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedSettings(_CheckedSettings):
    """Configs that clients read and that cannot be changed."""

    default_replication_factor: int = setting(
        1,
        "Replicas of a topic that is created without a replication factor.",
        at_least=1,
        at_most=1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Groups and the offsets they commit."""

    offsets_topic_num_partitions: int = setting(
        8,
        "Partitions of __consumer_offsets when it is created; must not change afterwards.",
        at_least=1,
    )
    offsets_topic_segment_bytes: int = setting(
        100 << 20, "Segment size of __consumer_offsets when it is created.", at_least=1024
    )
    offsets_retention_minutes: int = setting(
        10_080,
        "How long offsets are kept once their group is empty, or no longer reads the topic.",
        at_least=1,
    )
    offsets_retention_check_interval_ms: int = setting(
        600_000, "How often offsets past their retention are removed.", at_least=1, long=True
    )
    offset_metadata_max_bytes: int = setting(
        4096, "The longest metadata that may be committed with an offset.", at_least=0
    )
    group_min_session_timeout_ms: int = setting(
        6_000, "The shortest session timeout a member may request.", at_least=0
    )
    group_max_session_timeout_ms: int = setting(
        1_800_000, "The longest session timeout a member may request.", at_least=0
    )
    group_initial_rebalance_delay_ms: int = setting(
        3_000, "How long the first rebalance of an empty group waits for more members.", at_least=0
    )
    group_max_size: int = setting(
        (1 << 31) - 1, "Limit of the members of one classic group.", at_least=1
    )
    group_consumer_session_timeout_ms: int = setting(
        45_000,
        "How long a member of a consumer group may send no heartbeat before it is removed.",
        at_least=1,
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        5_000, "How often members of consumer groups send heartbeats.", at_least=1
    )
    group_consumer_min_session_timeout_ms: int = setting(
        45_000, "The shortest consumer.session.timeout.ms of a single group.", at_least=1
    )
    group_consumer_max_session_timeout_ms: int = setting(
        60_000, "The longest consumer.session.timeout.ms of a single group.", at_least=1
    )
    group_consumer_min_heartbeat_interval_ms: int = setting(
        5_000, "The shortest consumer.heartbeat.interval.ms of a single group.", at_least=1
    )
    group_consumer_max_heartbeat_interval_ms: int = setting(
        15_000, "The longest consumer.heartbeat.interval.ms of a single group.", at_least=1
    )
    group_consumer_max_size: int = setting(
        (1 << 31) - 1, "Limit of the members of one consumer group.", at_least=1
    )
    group_consumer_assignors: str = setting(
        "uniform,range",
        "Assignors that members of consumer groups may request; the first is the default.",
    )

    @property
    def consumer_assignors(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.group_consumer_assignors.split(","))

    def __post_init__(self) -> None:
        check_settings(self)
        self._check_consumer_groups()
        for low, high in (
            ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
            ("group.consumer.min.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
            (
                "group.consumer.min.heartbeat.interval.ms",
                "group.consumer.max.heartbeat.interval.ms",
            ),
        ):
            low_value, high_value = (getattr(self, name.replace(".", "_")) for name in (low, high))
            if low_value > high_value:
                raise InvalidSetting(f"{low} = {low_value} exceeds {high} = {high_value}")

    @property
    def consumer_config_bounds(self) -> dict[str, tuple[int, int]]:
        """The lowest and highest value of each of ConsumerGroupConfigs."""
        return {
            "consumer_session_timeout_ms": (
                self.group_consumer_min_session_timeout_ms,
                self.group_consumer_max_session_timeout_ms,
            ),
            "consumer_heartbeat_interval_ms": (
                self.group_consumer_min_heartbeat_interval_ms,
                self.group_consumer_max_heartbeat_interval_ms,
            ),
        }

    def _check_consumer_groups(self) -> None:
        unknown = [assignor for assignor in self.consumer_assignors if assignor not in ASSIGNORS]
        if unknown:
            raise InvalidSetting(
                f"group.consumer.assignors = {self.group_consumer_assignors!r} names "
                f"{unknown[0]!r}; use {', '.join(ASSIGNORS)}"
            )
        interval_ms = self.group_consumer_heartbeat_interval_ms
        if interval_ms >= self.group_consumer_session_timeout_ms:
            raise InvalidSetting(
                f"group.consumer.heartbeat.interval.ms = {interval_ms} must be less than "
                "group.consumer.session.timeout.ms = "
                f"{self.group_consumer_session_timeout_ms}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupConfigs(_CheckedSettings):
    """Configs that a single consumer group may have of its own."""

    consumer_session_timeout_ms: int = setting(
        45_000,
        "How long a member of the group may send no heartbeat before it is removed.",
        at_least=1,
    )
    consumer_heartbeat_interval_ms: int = setting(
        5_000, "How often members of the group send heartbeats.", at_least=1
    )

    @classmethod
    def of_group(cls, settings: GroupSettings, own: Mapping[str, str]) -> "ConsumerGroupConfigs":
        """The configs in effect: the group's own, or the broker's.

        What a group has of its own may be older than the bounds of the broker, which count.
        """
        base = cls(
            consumer_session_timeout_ms=settings.group_consumer_session_timeout_ms,
            consumer_heartbeat_interval_ms=settings.group_consumer_heartbeat_interval_ms,
        )
        if not own:
            return base
        parsed = parse_settings(cls, own, "a group's configs", base=base)
        bounded = {
            name: min(max(getattr(parsed, name), low), high)
            for name, (low, high) in settings.consumer_config_bounds.items()
            if name.replace("_", ".") in own
        }
        return replace(base, **bounded)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings(_CheckedSettings):
    """Transactions and transactional ids."""

    transaction_state_log_num_partitions: int = setting(
        8, "Partitions of __transaction_state when it is created.", at_least=1
    )
    transaction_state_log_segment_bytes: int = setting(
        100 << 20, "Segment size of __transaction_state when it is created.", at_least=1024
    )
    transaction_max_timeout_ms: int = setting(
        900_000, "The longest transaction timeout a producer may request.", at_least=1
    )
    transactional_id_expiration_ms: int = setting(
        604_800_000,
        "How long a transactional id without an open transaction is remembered.",
        at_least=1,
    )
    transaction_abort_interval_ms: int = setting(
        10_000,
        "How often transactions that are open longer than their timeout are aborted.",
        kafka_name="transaction.abort.timed.out.transaction.cleanup.interval.ms",
        at_least=1,
    )
    transaction_expiration_interval_ms: int = setting(
        3_600_000,
        "How often expired transactional ids are removed.",
        kafka_name="transaction.remove.expired.transaction.cleanup.interval.ms",
        at_least=1,
    )
    transaction_partition_verification_enable: bool = setting(
        True, "Whether a transactional batch needs its partition to be part of the transaction."
    )


MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """Authorization and authentication of clients."""

    authorizer_class_name: str = setting(
        "", "Any value switches authorization on, whichever of Kafka's authorizers it names."
    )
    authorizer_enable: bool = setting(
        False,
        "Whether ACLs are enforced: only what an ACL allows is permitted then.",
        kafka_name="varve.authorizer.enable",
    )
    super_users: str = setting(
        "", "Principals that may do everything, such as `User:alice;User:bob`."
    )
    allow_everyone_if_no_acl_found: bool = setting(
        False, "Whether all users may access a resource that has no ACL."
    )
    acl_count_max: int = setting(
        100_000,
        "How many ACLs there may be; a request that would add more is refused.",
        kafka_name="varve.acls.max.count",
        at_least=0,
    )
    sasl_enabled_mechanisms: tuple[str, ...] = setting(
        ("SCRAM-SHA-256", "SCRAM-SHA-512"),
        "SASL mechanisms for clients. PLAIN sends the password itself: use it with TLS only.",
        choices=MECHANISMS,
    )
    sasl_plain_users: str = setting(
        "",
        "A file with a line `name=hash` for each user of PLAIN; `hash_password` computes the hash.",
        kafka_name="varve.sasl.plain.users",
    )
    sasl_logins_max_per_ip: int = setting(
        64,
        "How many PLAIN logins of one address, or of one IPv6 network of 64 bits, wait for a slow "
        "password hash; the connections of further ones are closed, and their clients try again.",
        kafka_name="varve.sasl.logins.max.per.ip",
        at_least=1,
    )
    connections_max_reauth_ms: int = setting(
        0,
        "Time after which a client must authenticate again on its connection; 0 is never.",
        at_least=0,
        long=True,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        for name in self.super_user_names:
            kind, colon, user = name.partition(":")
            if not (kind and colon and user):
                raise InvalidSetting(
                    f"super.users has {name!r:.120}; write a type, a colon and a name, and ; "
                    "between users, as in User:alice;User:bob"
                )

    @property
    def has_authorizer(self) -> bool:
        return self.authorizer_enable or bool(self.authorizer_class_name)

    @property
    def super_user_names(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.super_users.split(";") if name.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSettings(_CheckedSettings):
    """Measurement of client rates for quotas."""

    window_count: int = setting(
        11,
        "Number of windows over which a client's rate is measured.",
        kafka_name="quota.window.num",
        at_least=1,
        at_most=3_600,
    )
    window_seconds: int = setting(
        1,
        "Length of a quota window.",
        kafka_name="quota.window.size.seconds",
        at_least=1,
        at_most=3_600,
    )
