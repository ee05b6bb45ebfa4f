"""The examples of docs/how-to/test-your-program.md run in a folder of their own."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "test-your-program.md"


_WITHOUT = ("-p", "no:cacheprovider", "-p", "no:schemathesis")


def _files() -> dict[str, str]:
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    return dict(blocks)


def test_the_documented_example_runs(tmp_path: Path) -> None:
    files = _files()
    assert sorted(files) == ["test_orders.py", "test_scores.py"]
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", *_WITHOUT],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "16 passed" in result.stdout
