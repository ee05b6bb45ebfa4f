"""Stands for Python when Spark starts one: has a process of `spark_python` become it.

It hands over its arguments, directory, environment and standard files, and ends when that process
has ended. Imports little, so that it starts at once; `forked_python` makes a program of it.
"""

import array
import json
import os
import socket
import sys


def main() -> None:
    if sys.argv[1:2] != ["-m"]:  # Spark asks for the version once
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    try:
        directory = os.getcwd()
    except FileNotFoundError:  # that of a test that is over, in which Java was started
        directory = "/"
    order = {
        "arguments": sys.argv[1:],
        "directory": directory,
        "environment": dict(os.environ),
    }
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.path.join(os.path.dirname(os.path.abspath(__file__)), "socket"))
    files = array.array("i", [0, 1, 2])
    connection.sendmsg([b"o"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
    connection.sendall(json.dumps(order).encode() + b"\n")
    for number in (0, 1):
        os.close(number)
    connection.recv(1)


if __name__ == "__main__":
    main()
