"""A process that creates objects in competition with others and prints which ones it won.

    python -m tests.support.create_racer URL SETTINGS-JSON NAME COUNT

It says "ready", waits for a line on its input, and creates race/0, race/1 and so on.
"""

import json
import sys

from varve.foundation.errors import ObjectExists
from varve.object_store import open_object_store


def main() -> None:
    url, settings, name, count = sys.argv[1:]
    store = open_object_store(url, json.loads(settings))
    print("ready", flush=True)
    sys.stdin.readline()
    won = []
    for number in range(int(count)):
        try:
            store.create(f"race/{number}", f"{name} {number}".encode())
        except ObjectExists:
            continue
        won.append(number)
    print(json.dumps(won), flush=True)


if __name__ == "__main__":
    main()
