"""Settings of who may do what, by Kafka's names."""

from dataclasses import dataclass

from varve.foundation.errors import InvalidSetting
from varve.foundation.settings import check_settings, setting

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """Whether rights are kept, and how clients say who they are."""

    authorizer_class_name: str = setting(
        "",
        "Anything here switches rights on, whichever of Kafka's authorizers it names; varve has "
        "one of its own.",
        "authorizer.class.name",
    )
    authorizer_enable: bool = setting(
        False,
        "Whether rights are asked for: then nothing is allowed that nobody was given.",
        "varve.authorizer.enable",
        is_own=True,
    )
    super_users: str = setting(
        "",
        "Who may do everything, as in `User:alice;User:bob`.",
        "super.users",
    )
    allow_everyone_if_no_acl_found: bool = setting(
        False,
        "Whether everybody may use what no right speaks of.",
        "allow.everyone.if.no.acl.found",
    )
    sasl_enabled_mechanisms: tuple[str, ...] = setting(
        ("SCRAM-SHA-256", "SCRAM-SHA-512"),
        "How clients may log in. PLAIN sends the password itself: use it behind TLS only.",
        "sasl.enabled.mechanisms",
        choices=MECHANISMS,
    )
    sasl_plain_users: str = setting(
        "",
        "A file with a line `name=hash` for each user of PLAIN, as `hash_password` makes them.",
        "varve.sasl.plain.users",
        is_own=True,
    )
    connections_max_reauth_ms: int = setting(
        0,
        "After this time a client must log in again on its connection, or it is closed; 0 is "
        "never.",
        "connections.max.reauth.ms",
        at_least=0,
        long=True,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        for name in self.super_user_names:
            kind, colon, rest = name.partition(":")
            if not (kind and colon and rest):
                raise InvalidSetting(
                    f"super.users has {name!r:.120}; write a type, a colon and a name, and ; "
                    "between users, as in User:alice;User:bob"
                )

    @property
    def has_authorizer(self) -> bool:
        return self.authorizer_enable or bool(self.authorizer_class_name)

    @property
    def super_user_names(self) -> tuple[str, ...]:
        return tuple(one.strip() for one in self.super_users.split(";") if one.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSettings:
    """How rates of clients are measured."""

    window_count: int = setting(
        11,
        "Over how many windows a client's rate is taken.",
        "quota.window.num",
        at_least=1,
        at_most=3_600,
    )
    window_seconds: int = setting(
        1,
        "How long one such window is.",
        "quota.window.size.seconds",
        at_least=1,
        at_most=3_600,
    )

    def __post_init__(self) -> None:
        check_settings(self)
