"""The page of a verification stands alone, and shows what it was given as text."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from tests.support.remote_compaction import RemoteCompaction
from tests.support.tier_bench import TierBench, tiered
from tests.support.verification import verify_bench
from varve.cli.job import print_verdicts
from varve.cli.output import Output
from varve.commit_log.check.findings import Severity
from varve.jobs.verify.page import render_page
from varve.jobs.verify.result import PartitionVerdict, VerifyFinding, VerifyResult

EVIL = "<script>alert('&')</script>"


def partition() -> PartitionVerdict:
    remote = RemoteCompaction(TierBench(tiered(segment_bytes=600)))
    remote.bench.fill(5, 5, 5)
    remote.copy()
    return verify_bench(remote.bench)


def result(*partitions: PartitionVerdict, findings: tuple[VerifyFinding, ...] = ()) -> VerifyResult:
    return VerifyResult(
        store=EVIL, started_ms=1_000, elapsed_ms=5, partitions=partitions, others=findings
    )


def test_the_page_is_whole_and_asks_nothing_of_others() -> None:
    page = render_page(result(partition()))
    assert page.count('class="picture"') == 2
    assert page.count('class="bar"') >= 2
    assert "http" not in page
    assert "<script" not in page
    assert "url(" not in page
    assert "No damage" in page
    body = page[page.index("<main>") : page.index("</main>") + 7]
    ElementTree.fromstring(body.replace("<br>", "<br/>"))


def test_texts_of_findings_are_escaped() -> None:
    found = VerifyFinding(
        severity=Severity.ERROR,
        rule="object-missing",
        where=EVIL,
        message=EVIL,
        remedy=EVIL,
        expected=EVIL,
        found=EVIL,
    )
    page = render_page(result(findings=(found,)))
    assert EVIL not in page
    assert page.count("&lt;script&gt;") == 6
    assert "Damage was found" in page


def test_a_picture_of_very_many_segments_stays_small() -> None:
    one = partition()
    first = one.segments[0]
    many = tuple(
        replace(first, base_offset=5 * number, end_offset=5 * number + 4, stale_bytes=number % 7)
        for number in range(20_000)
    )
    page = render_page(result(replace(one, segments=many)))
    assert len(page) < 1_000_000
    assert "segments" in page


def test_the_terminal_shows_partitions_and_what_was_found(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = VerifyFinding(
        severity=Severity.WARNING, rule="orphan", where="a/b", message="left", position=7
    )
    one = partition()
    print_verdicts(result(replace(one, findings=(found,))), Output())
    shown = capsys.readouterr().out
    assert "orders-0" in shown
    assert "orphan: left" in shown
    assert "a/b at byte 7" in shown
    assert "1 warning," in shown
