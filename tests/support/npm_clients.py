"""Clients of npm in a Node.js process that takes orders: tests/shape_clients/sync.mjs.

with NpmClients() as clients:
    clients.follow("one", url=server.url, params={"table": "parcels"})
    clients.wait(topic.rows(), "one")
"""

import json
import queue
import subprocess
import threading
from collections.abc import Mapping
from typing import Any, Final, Self

from tests.support.shape_topic import Row, Rows
from tests.support.web_setup import PACKAGES, find_missing, find_node

_PATIENCE_SECONDS: Final = 60.0
_END_SECONDS: Final = 10.0


class NpmClients:
    """As many clients as are wanted, by name; one thread at a time may use it."""

    def __init__(self) -> None:
        missing = find_missing().get("node")
        assert missing is None, f"there is no {missing}: run `make setup`"
        node = find_node()
        assert node is not None
        self._process = subprocess.Popen(
            [node, "sync.mjs"],
            cwd=PACKAGES[0],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answers: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def follow(
        self,
        *names: str,
        url: str,
        params: Mapping[str, Any],
        slow: Mapping[str, float] | None = None,
        resumes: bool = False,
        **options: Any,
    ) -> None:
        """`options` are those of ShapeStream; `slow` has piece_bytes and rest_ms.

        With `resumes` the app asks again where an answer broke off, which the client leaves to it.
        """
        stream = {"url": url, "params": dict(params), **options}
        self._order(
            "follow", names=names, options=stream, slow=slow and dict(slow), resumes=resumes
        )

    def wait(self, rows: Rows, *names: str, seconds: float = _PATIENCE_SECONDS) -> None:
        """Returns when each has exactly these rows; else raises with what one of them has."""
        told = self._order(
            "wait", names=names, rows=rows, patience_ms=seconds * 1000, patience=seconds
        )
        if told["behind"]:
            found = self.look(told["behind"][0])
            raise AssertionError(
                f"{len(told['behind'])} of {len(names)} clients are behind after {seconds} s; "
                f"{tell_difference(found['rows'], rows)}; {found['facts']}"
            )

    def look(self, name: str) -> dict[str, Any]:
        """The `rows` of a client, and its `facts`: counts of requests, refetches, errors."""
        return self._order("look", name=name)

    def facts(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.look(name)["facts"]
        return found

    def subset(self, name: str, **params: Any) -> None:
        self._order("subset", name=name, params=params)

    def leave(self, *names: str, refetches: int | None = None) -> None:
        """Stops clients that told the app of no error, and had to begin anew so often."""
        for name in names:
            facts = self.facts(name)
            assert facts["errors"] == [], name
            assert refetches in (None, facts["refetches"]), f"{name}: {facts}"
        self.stop(*names)

    def stop(self, *names: str) -> None:
        self._order("stop", names=names)

    def _order(self, do: str, *, patience: float = 0.0, **given: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(json.dumps({"do": do, **given}), file=self._process.stdin, flush=True)
        line = self._answers.get(timeout=patience + _PATIENCE_SECONDS)
        assert line, "the process of the clients has ended; its errors are on stderr"
        told: dict[str, Any] = json.loads(line)
        assert "error" not in told, told["error"]
        return told

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(_END_SECONDS)
        self._process.stdout.close()


def tell_difference(found: Rows, expected: Rows) -> str:
    """How the rows of a client differ from those it must come to."""
    missing = [key for key in expected if key not in found]
    extra = [key for key in found if key not in expected]
    other = [key for key in found if key in expected and found[key] != expected[key]]
    shown = [_tell_columns(key, found[key], expected[key]) for key in other[:2]]
    return (
        f"one has {len(found)} rows, misses {missing[:3]} and {max(0, len(missing) - 3)} more, has "
        f"{extra[:3]} too many, and {len(other)} are other: {shown}"
    )


def _tell_columns(key: str, found: Row, expected: Row) -> str:
    pairs = [
        (name, found.get(name, "nothing"), expected.get(name, "nothing"))
        for name in sorted(found.keys() | expected.keys())
    ]
    told = [
        f"{name} {has!r:.80} instead of {wants!r:.80}" for name, has, wants in pairs if has != wants
    ]
    return f"{key}: {', '.join(told)}"
