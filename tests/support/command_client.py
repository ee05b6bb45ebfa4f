"""Stands for `varve` or `python`: has a command server run the command.

It hands its arguments, directory, environment and files to the server, forwards signals to the
command, and ends with its exit code. Imports little, so that a command starts at once.
"""

import array
import json
import os
import signal
import socket
import sys


def _is_for_spark(arguments: list[str]) -> bool:
    if not os.environ.get("COMMAND_SPARK"):
        return False
    if arguments[0] == "varve":
        return arguments[1:2] == ["job"]
    with open(arguments[1], encoding="utf-8") as file:
        return "spark" in file.read()


def main() -> int:
    arguments = sys.argv[1:]
    name = "COMMAND_SPARK" if _is_for_spark(arguments) else "COMMAND_SERVER"
    order = {
        "arguments": arguments,
        "directory": os.getcwd(),
        "environment": dict(os.environ),
        "client": os.getpid(),
    }
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ[name])
    files = array.array("i", [0, 1, 2])
    connection.sendmsg([b"o"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
    connection.sendall(json.dumps(order).encode() + b"\n")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: connection.sendall(bytes([received])))
    answer = connection.recv(1)
    return answer[0] if answer else 137


if __name__ == "__main__":
    sys.exit(main())
