"""G7: whatever is on record, and whatever is on disk, an audit reports and changes nothing."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.audit_bench import AuditBench
from varve.cleaning.removals.audit import audit_partition
from varve.cleaning.removals.removal import (
    Reason,
    Removal,
    RemovalKind,
    SegmentSummary,
    encode_removal,
)
from varve.cleaning.removals.removal_log import FIRST_CHAIN, VERSION, encode_line
from varve.cli.check import print_report
from varve.cli.output import Output
from varve.commit_log import TopicPartition
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock

SMALL = st.integers(0, 12)
NUMBERS = SMALL | st.integers(0, 2**63 - 1)
SIZES = st.sampled_from([0, 1, 70, 78, 234, 351, 2**40])
FIGURES = st.lists(
    st.builds(SegmentSummary, SMALL, NUMBERS, SIZES, SMALL, st.none() | st.just(7)), max_size=3
).map(tuple)
BALANCES = st.builds(
    Removal,
    id=st.just(0),
    partition=st.sampled_from([TopicPartition("orders", 0), TopicPartition("", 9)]),
    kind=st.sampled_from(RemovalKind),
    at_ms=NUMBERS,
    inputs=FIGURES,
    outputs=FIGURES,
    records=st.dictionaries(st.sampled_from(list(Reason)), NUMBERS, max_size=3),
    bytes=st.just({}),
    keys_before=st.just("a"),
    keys_after=st.sampled_from(["a", "b"]),
    rule=st.text(max_size=5),
    end_offset=NUMBERS,
)
LINES = st.lists(BALANCES | st.integers(0, 8), max_size=8)
FILES = st.lists(
    st.tuples(
        SMALL,
        st.lists(SMALL, max_size=4, unique=True).map(sorted),
        st.sampled_from(["", "", ".cleaned", ".swap", ".deleted"]),
    ),
    max_size=5,
)


def contents(bench: AuditBench) -> dict[str, bytes]:
    names = bench.fs.names(bench.directory)
    return {name: bench.fs.read(f"{bench.directory}/{name}") for name in names}


@settings(deadline=None)
@given(LINES, FILES, st.booleans())
def test_an_audit_reports_whatever_is_there(
    lines: list[Removal | int],
    files: list[tuple[int, list[int], str]],
    deep: bool,
) -> None:
    bench = AuditBench(MemoryFileSystem(ManualClock()), "/d")
    for base, offsets, state in files:
        bench.write(base, [offset for offset in offsets if offset >= base], state)
    chain = FIRST_CHAIN
    written = []
    for id, content in enumerate(lines, start=1):
        told = {"done": content} if isinstance(content, int) else encode_removal(content)
        line, chain = encode_line({"version": VERSION, "id": id, **told}, chain)
        written.append(line)
    bench.put_lines(written)
    before = contents(bench)
    report = audit_partition(bench.fs, bench.directory, deep=deep)
    assert len(report.entries) == sum(isinstance(content, Removal) for content in lines)
    assert contents(bench) == before
    print_report(Output(), report, limit=3)
