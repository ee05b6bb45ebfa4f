"""Whatever is written, copied, cleaned and moved out: a key is found as a dict of it would tell."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.remote_lookup_bench import RemoteLookupBench
from tests.support.tier_bench import tiered

Step = tuple[str, int, int]

KEYS = 3
puts = st.tuples(st.just("put"), st.integers(0, KEYS - 1), st.integers(0, 2))
voids = st.tuples(st.just("void"), st.integers(0, KEYS - 1), st.integers(0, 1))
others = st.tuples(
    st.sampled_from(["roll", "copy", "clean", "move", "reopen"]), st.integers(0, 2), st.just(0)
)
steps = st.one_of(puts, voids, others, others)


def do(bench: RemoteLookupBench, step: Step, table: dict[int, bytes | None]) -> None:
    hot = bench.hot
    match step:
        case ("put", key, kind):
            value = None if kind == 0 else f"at {hot.log.end_offset}"
            hot.put(f"key-{key}", value)
            table[key] = None if value is None else value.encode()
        case ("void", key, is_long):
            hot.put(f"key-{key}", "void", producer_id=7, transactional=True)
            if is_long:
                hot.roll()
            hot.end_transaction(7, committed=False)
        case ("roll", _, _):
            hot.roll()
        case ("copy", _, _):
            bench.copy()
        case ("clean", _, _):
            if hot.settings.is_compacted:
                hot.clean()
        case ("move", back, _):
            copied = bench.copied_offset()
            bases = [one.base_offset for one in hot.log.view if one.base_offset <= copied]
            if len(bases) > back:
                bench.move(bases[len(bases) - 1 - back])
        case _:
            bench.pool.close()
            bench.reopen()


@settings(max_examples=40, deadline=None)
@given(st.lists(steps, max_size=25), st.sampled_from(["compact", "delete"]))
def test_a_key_is_found_in_whichever_tier_it_is(sequence: list[Step], policy: str) -> None:
    bench = RemoteLookupBench(settings=tiered(cleanup_policy=(policy,)))
    table: dict[int, bytes | None] = {}
    for step in [*sequence, ("roll", 0, 0), ("copy", 0, 0), ("move", 0, 0)]:
        do(bench, step, table)
        if step[0] in ("clean", "move", "reopen"):
            for key in range(KEYS):
                assert bench.find_value(f"key-{key}") == table.get(key)
    bench.pool.close()
