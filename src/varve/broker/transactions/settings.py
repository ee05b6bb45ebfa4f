"""Settings of transactions, by Kafka's names."""

from dataclasses import dataclass

from varve.foundation.settings import check_settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """How long transactions and their producers are remembered, and where."""

    transaction_state_log_num_partitions: int = setting(
        8,
        "Partitions of __transaction_state, when it is made.",
        "transaction.state.log.num.partitions",
        at_least=1,
    )
    transaction_state_log_segment_bytes: int = setting(
        100 << 20,
        "Segment size of __transaction_state, when it is made.",
        "transaction.state.log.segment.bytes",
        at_least=1024,
    )
    transaction_max_timeout_ms: int = setting(
        900_000,
        "The longest transaction timeout a producer may ask for.",
        "transaction.max.timeout.ms",
        at_least=1,
    )
    transactional_id_expiration_ms: int = setting(
        604_800_000,
        "How long a transactional id without an open transaction is remembered.",
        "transactional.id.expiration.ms",
        at_least=1,
    )
    transaction_abort_interval_ms: int = setting(
        10_000,
        "How often transactions are looked for that are open longer than their timeout.",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        at_least=1,
    )
    transaction_expiration_interval_ms: int = setting(
        3_600_000,
        "How often transactional ids are looked for that may be forgotten.",
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        at_least=1,
    )
    transaction_partition_verification_enable: bool = setting(
        True,
        "Whether a batch of a transaction is refused unless its partition was added to it.",
        "transaction.partition.verification.enable",
    )

    def __post_init__(self) -> None:
        check_settings(self)
