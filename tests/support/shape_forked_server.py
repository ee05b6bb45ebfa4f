"""Forks `varve shape serve`, so that each life of a server begins at once; says how each ended.

Each line of input, a JSON list, holds the arguments of the command. It prints `pid <its pid>`, then
what the command prints, and after its end `dead <status>`: an exit code, or a signal below zero.

Crash      the end of the input, as when the tests are killed, ends the server and then the process.
"""

import gc
import json
import os
import select
import sys
import threading
import traceback

from varve.cli import shape
from varve.cli.main import main as run_command
from varve.http.shapes import launch

LOADED = (launch, shape)
"""What a command imports when it runs; here it is there before."""


def _end_with_the_input() -> None:
    """Ends the process when nobody can write to the input any more; reads nothing of it."""
    hung_up = select.poll()
    hung_up.register(sys.stdin, 0)
    hung_up.poll()
    os._exit(1)


def _serve(arguments: list[str]) -> int:
    threading.Thread(target=_end_with_the_input, daemon=True).start()
    sys.argv = ["varve", "shape", "serve", *arguments]
    try:
        run_command()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0


def main() -> None:
    gc.freeze()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            # os._exit: the copy must not run what its parent does at its end.
            try:
                os.setpgid(0, 0)
                print("pid", os.getpid(), flush=True)
                code = _serve(json.loads(line))
                sys.stdout.flush()
                sys.stderr.flush()
            except BaseException:
                traceback.print_exc()
                code = 1
            os._exit(code)
        _, status = os.waitpid(pid, 0)
        print("dead", os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
