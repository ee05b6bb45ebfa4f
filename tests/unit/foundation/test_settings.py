from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varve.foundation.errors import InvalidSetting
from varve.foundation.settings import (
    INT_MAX,
    LONG_MAX,
    SettingType,
    check_settings,
    declared,
    parse_settings,
    setting,
    to_kafka_names,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    segment_bytes: int = setting(100, "Roll here.", at_least=14)
    segment_ms: int = setting(7, "Roll then.", long=True, broker_name="log.roll.ms")
    level: int = setting(-1, "Level.", at_least=1, at_most=9, also=(-1,))
    ratio: float = setting(0.5, "Share.", at_least=0, at_most=1)
    preallocate: bool = setting(False, "Reserve.")
    kind: str = setting("a", "Kind.", choices=("a", "B"))
    policy: tuple[str, ...] = setting(
        ("delete",), "Policy.", choices=("compact", "delete"), ignore_case=True
    )

    def __post_init__(self) -> None:
        check_settings(self)


def test_text_is_parsed_by_the_declared_type() -> None:
    texts = {
        "segment.bytes": " 2048 ",
        "segment.ms": str(LONG_MAX),
        "level": "+9",
        "ratio": "0.25",
        "preallocate": "TRUE",
        "kind": "B",
        "policy": "Compact , delete,compact",
    }
    assert parse_settings(Example, texts) == Example(
        segment_bytes=2048,
        segment_ms=LONG_MAX,
        level=9,
        ratio=0.25,
        preallocate=True,
        kind="B",
        policy=("compact", "delete"),
    )


def test_plain_values_are_taken_as_they_are() -> None:
    found = parse_settings(Example, {"segment.bytes": 14, "preallocate": True, "ratio": 1})
    assert found == Example(segment_bytes=14, preallocate=True, ratio=1.0)
    assert isinstance(found.ratio, float)


def test_what_is_not_named_comes_from_the_base_and_else_is_the_default() -> None:
    base = Example(level=5)
    assert parse_settings(Example, {"segment.ms": 1}, base=base) == replace(base, segment_ms=1)
    assert parse_settings(Example, {}) == Example()


@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [
        ("segment.bytes", 13, f"14 to {INT_MAX}"),
        ("segment.bytes", INT_MAX + 1, f"14 to {INT_MAX}"),
        ("segment.ms", LONG_MAX + 1, str(LONG_MAX)),
        ("segment.ms", -(2**63) - 1, str(-(2**63))),
        ("level", 0, "1 to 9 or -1"),
        ("ratio", "nan", "0 to 1"),
        ("ratio", 1.5, "0 to 1"),
        ("kind", "A", "one of a, B"),
        ("policy", "compact,drop", "any of compact, delete"),
        ("segment.bytes", "12x", "type int"),
        ("segment.bytes", "1_000", "type int"),
        ("segment.bytes", "٣٤٥", "type int"),
        ("segment.bytes", "9" * 100_000, "type int"),
        ("segment.bytes", "", "type int"),
        ("segment.bytes", 20.0, "type int"),
        ("segment.bytes", True, "type int"),
        ("preallocate", 1, "type boolean"),
        ("preallocate", "yes", "true or false"),
        ("ratio", "half", "type double"),
        ("kind", 5, "one of a, B"),
    ],
)
def test_a_bad_value_is_refused_with_name_place_value_and_limit(
    name: str, value: bool | int | float | str, limit: str
) -> None:
    with pytest.raises(InvalidSetting) as caught:
        parse_settings(Example, {name: value}, "topic orders")
    message = str(caught.value)
    assert name in message
    assert "topic orders" in message
    assert limit in message
    assert str(value)[:50] in message or "policy" in message
    assert len(message) < 400


def test_an_unknown_name_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(InvalidSetting, match=r"'segment\.byte' in topic orders.*'segment\.bytes'"):
        parse_settings(Example, {"segment.byte": 1}, "topic orders")
    with pytest.raises(InvalidSetting, match=r"'segment_ms'.*'segment\.ms'"):
        parse_settings(Example, {"segment_ms": 1})


def test_an_unknown_name_like_no_other_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidSetting, match=r"known names are kind, level.*segment\.bytes"):
        parse_settings(Example, {"qqqq": 1})


def test_an_instance_made_directly_is_checked_too() -> None:
    with pytest.raises(InvalidSetting, match=r"segment\.bytes in Example is 1,"):
        Example(segment_bytes=1)
    with pytest.raises(InvalidSetting, match="type int"):
        Example(segment_bytes="20")  # type: ignore[arg-type]  # the very mistake under test


def test_the_way_back_gives_kafkas_names_and_texts() -> None:
    changed = Example(preallocate=True, policy=("compact", "delete"), segment_ms=5)
    assert to_kafka_names(changed, only_changed=True) == {
        "preallocate": "true",
        "policy": "compact,delete",
        "segment.ms": "5",
    }
    assert to_kafka_names(Example())["preallocate"] == "false"
    assert len(to_kafka_names(Example())) == 7


@given(
    st.builds(
        Example,
        segment_bytes=st.integers(14, INT_MAX),
        segment_ms=st.integers(-(2**63), LONG_MAX),
        level=st.just(-1) | st.integers(1, 9),
        ratio=st.floats(0, 1),
        preallocate=st.booleans(),
        kind=st.sampled_from(["a", "B"]),
        policy=st.lists(st.sampled_from(["compact", "delete"]), unique=True).map(tuple),
    )
)
def test_texts_parse_back_to_the_same_settings(settings: Example) -> None:
    assert parse_settings(Example, to_kafka_names(settings)) == settings
    assert parse_settings(Example, to_kafka_names(settings, only_changed=True)) == settings


def test_declarations_tell_all() -> None:
    by_name = {declaration.name: declaration for declaration in declared(Example)}
    assert list(by_name)[:2] == ["segment_bytes", "segment_ms"]
    assert by_name["segment_bytes"].type is SettingType.INT
    assert by_name["segment_ms"].type is SettingType.LONG
    assert by_name["segment_ms"].broker_name == "log.roll.ms"
    assert by_name["segment_bytes"].valid_text == "at least 14"
    assert by_name["level"].valid_text == "1 to 9 or -1"
    assert by_name["policy"].default_text == "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixedExample:
    setting_prefix: ClassVar = "shapes."
    is_own: ClassVar = True

    chunk_bytes: int = setting(1, "Bytes.")
    wait_ms: int = setting(2, "Wait.", kafka_name="shapes.max.wait.ms")


def test_the_name_of_a_setting_follows_from_its_field_and_class() -> None:
    names = {declaration.name: declaration.kafka_name for declaration in declared(PrefixedExample)}
    assert names == {"chunk_bytes": "shapes.chunk.bytes", "wait_ms": "shapes.max.wait.ms"}
    assert all(declaration.is_own for declaration in declared(PrefixedExample))


def test_a_name_that_begins_with_varve_is_not_one_of_kafkas() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Mixed:
        varve_job_keep: int = setting(1, "Keep.")
        segment_ms: int = setting(2, "Roll.")

    assert [declaration.is_own for declaration in declared(Mixed)] == [True, False]
