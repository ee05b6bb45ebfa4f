"""Forks servers, so that each one starts at once; says what becomes of them.

Each line of input, a JSON object with `directory` and `settings`, makes a server as `varve serve`
does. It prints `pid <its pid>`, then `serves ...` when clients may come. After its end: `dead`.

Crash      the end of the input, as when the tests are killed, ends the server and then the process.
"""

import gc
import json
import logging
import os
import select
import sys
import threading
import traceback
from typing import Any

from varve.kafka_server.config import make_config
from varve.kafka_server.launch import serve
from varve.records import Codec, Record, build_batch


def _end_with_the_input() -> None:
    """Ends the process when nobody can write to the input any more; reads nothing of it."""
    hung_up = select.poll()
    hung_up.register(sys.stdin, 0)
    hung_up.poll()
    os._exit(1)


def _serve(order: dict[str, Any]) -> None:
    threading.Thread(target=_end_with_the_input, daemon=True).start()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    plan = make_config(order["settings"], [order["directory"]], default_directory="")
    serve(plan, lambda line: print(line, flush=True))


def main() -> None:
    build_batch([Record(b"key", b"value")], codec=Codec.NONE)  # loads the kernels
    gc.freeze()
    print("ready", flush=True)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            # os._exit: the copy must not run what its parent does at its end.
            try:
                os.setpgid(0, 0)
                print("pid", os.getpid(), flush=True)
                _serve(json.loads(line))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        os.waitpid(pid, 0)
        print("dead", flush=True)


if __name__ == "__main__":
    main()
