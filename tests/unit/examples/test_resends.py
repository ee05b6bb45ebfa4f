"""examples/dedup/resends.py: every sale once, whatever fails; and the page shows what it prints."""

import runpy
from collections import Counter
from pathlib import Path

import pytest

from examples.dedup.resends import POWER_FAILS, SALES_PER_HOUR, live
from varve.testing import VirtualStore

ROOT = Path(__file__).parents[3]


def test_every_sale_comes_out_once(tmp_path: Path) -> None:
    with VirtualStore() as kit:
        for at in live(kit, str(tmp_path / "state"), hours=POWER_FAILS + 1):
            assert at.kept == at.in_topic == at.hour * SALES_PER_HOUR
            assert at.kept + at.duplicates + at.late == at.sent
            assert at.late == 0
        sales = kit.store.topic("sales").read(isolation="read_committed")
        assert set(Counter(one.key for one in sales).values()) == {1}


def test_the_page_shows_what_the_example_prints(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples/dedup/resends.py"), run_name="__main__")
    shown = f"```console\n$ python examples/dedup/resends.py\n{capsys.readouterr().out}```"
    assert shown in (ROOT / "docs/how-to/deduplicate.md").read_text(encoding="utf-8")
