"""Settings of the administration, by Kafka's names."""

from dataclasses import dataclass

from varve.foundation.settings import check_settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSettings:
    """What clients may do to topics."""

    delete_topic_enable: bool = setting(
        True,
        "Whether clients may delete topics.",
        "delete.topic.enable",
    )

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationSettings:
    """What a topic may be told of its replicas: what is true of one replica, and nothing else.

    Clients give these with a topic out of habit. They are not kept.
    """

    min_insync_replicas: int = setting(
        1,
        "Replicas that must have a record before acks=all is answered; this broker is the only "
        "one.",
        "min.insync.replicas",
        broker_name="min.insync.replicas",
        at_least=1,
        at_most=1,
    )
    unclean_leader_election_enable: str = setting(
        "false",
        "Whether a replica that lags may lead; there is none.",
        "unclean.leader.election.enable",
        broker_name="unclean.leader.election.enable",
        choices=("false",),
        ignore_case=True,
    )

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedSettings:
    """What clients look for and cannot be otherwise."""

    default_replication_factor: int = setting(
        1,
        "Replicas of a topic that is made without saying how many.",
        "default.replication.factor",
        at_least=1,
        at_most=1,
    )

    def __post_init__(self) -> None:
        check_settings(self)
