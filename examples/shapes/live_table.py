"""A topic as a live table in the browser, while producers write to it.

`python examples/shapes/live_table.py` starts a broker, a server of shapes, two producers and the
page on loopback, tells the address of the page, and ends with Ctrl-C. The page needs the packages
of `npm ci` in this folder.
"""

import functools
import http.server
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

HERE = Path(__file__).parent
TOPIC = "parcels"
STATES = ("waiting", "moving", "arrived")
TOWNS = ("Ulm", "Åbo", "Split", "Oran", "Cork", "Kraków")
PARCEL_COUNT = 20
PATIENCE_SECONDS = 30


class Command:
    """A `varve` command that runs while it is entered; `address` is where it serves."""

    def __init__(self, *arguments: str) -> None:
        # In a session of its own it does not see Ctrl-C: servers end after what needs them.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "varve", *arguments],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found = re.search(r"127\.0\.0\.1:\d+", line)
        if found is None:
            self.__exit__()
            raise RuntimeError(f"`varve {' '.join(arguments)}` did not begin to serve: {line!r}")
        self.address = found[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()


class Page:
    """Serves this folder while it is entered."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        extensions_map = {  # noqa: RUF012  # declared so by the base class
            **http.server.SimpleHTTPRequestHandler.extensions_map,
            ".mjs": "text/javascript",
        }

        def log_message(self, format: str, *args: Any) -> None:
            """The terminal is for the address of the page."""

    def __init__(self) -> None:
        handler = functools.partial(self.Handler, directory=str(HERE))
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.address = f"127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Courier:
    """Writes changes of the parcels with a number that leaves its rest when divided by the step."""

    def __init__(self, bootstrap: str, *, rest: int = 0, step: int = 1) -> None:
        self.parcels: dict[str, dict[str, object]] = {}
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        self._random = random.Random(rest)
        self._numbers = range(1 + rest, PARCEL_COUNT + 1, step)

    def change(self) -> None:
        """A scan of one parcel; one that has arrived may be handed over, and is gone."""
        name = f"parcel {self._random.choice(self._numbers)}"
        parcel = self.parcels.pop(name, None)
        if parcel is not None and parcel["state"] == "arrived" and self._random.random() < 0.5:
            self._producer.produce(TOPIC, key=name, value=None)
        else:
            self.parcels[name] = self._scan(parcel)
            self._producer.produce(TOPIC, key=name, value=json.dumps(self.parcels[name]))
        self._producer.poll(0)

    def clear(self) -> None:
        """Hands over every parcel."""
        for name in self.parcels:
            self._producer.produce(TOPIC, key=name, value=None)
        self.parcels.clear()
        self.flush()

    def _scan(self, parcel: dict[str, object] | None) -> dict[str, object]:
        if parcel is None:
            grams = self._random.randrange(100, 30_000)
            return {"state": STATES[0], "town": TOWNS[0], "grams": grams, "scans": 1}
        scans = int(str(parcel["scans"])) + 1
        state = STATES[min(scans // 4, 2)]
        return {**parcel, "state": state, "town": self._random.choice(TOWNS), "scans": scans}

    def flush(self) -> None:
        if left := self._producer.flush(PATIENCE_SECONDS):
            raise RuntimeError(f"the broker has not acknowledged {left} records")


class LiveTable:
    """Broker, server of shapes and page, while it is entered."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            root = stack.enter_context(tempfile.TemporaryDirectory())
            data, shapes = f"{root}/data", f"{root}/shapes"
            options = ("--listen", "127.0.0.1:0", "--log-level", "warning")
            broker = Command("serve", "-d", data, *options)
            self.bootstrap = stack.enter_context(broker).address
            admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
            created = admin.create_topics([NewTopic(TOPIC, 1, 1)])
            created[TOPIC].result(PATIENCE_SECONDS)
            page = stack.enter_context(Page()).address
            allowed = f"--set=shapes.http.allowed.origins=http://{page}"
            served = Command(
                "shape", "serve", "-b", self.bootstrap, "--data", shapes, allowed, *options
            )
            self.shape_url = f"http://{stack.enter_context(served).address}/v1/shape"
            self.page_url = f"http://{page}/?{urlencode({'shapes': self.shape_url})}"
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()


def drive(courier: Courier, ended: threading.Event, *, rest_seconds: float) -> None:
    """Changes, with rests between them, until it has ended."""
    while not ended.wait(rest_seconds):
        courier.change()
    courier.flush()


def main() -> None:
    if not (HERE / "node_modules").is_dir():
        sys.exit(f"run `npm ci` in {HERE} first: the page is made of the client of npm")
    for number in (signal.SIGTERM, signal.SIGHUP):
        # The servers have sessions of their own, and would stay when only this process ends.
        signal.signal(number, signal.default_int_handler)
    with LiveTable() as table:
        ended = threading.Event()
        couriers = [Courier(table.bootstrap, rest=rest, step=2) for rest in range(2)]
        threads = [
            threading.Thread(target=drive, args=(one, ended), kwargs={"rest_seconds": 0.1})
            for one in couriers
        ]
        for thread in threads:
            thread.start()
        print(f"parcels, live: {table.page_url}\nCtrl-C ends it.", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print()
        finally:
            ended.set()
            for thread in threads:
                thread.join()


if __name__ == "__main__":
    main()
