"""`python -m benchmarks.shapes.static_process DIRECTORY`: serves its files, and says its port."""

import socket
import sys
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse
from starlette.routing import Route


def main() -> None:
    directory = Path(sys.argv[1])

    async def answer(request: Request) -> FileResponse:
        return FileResponse(directory / request.path_params["name"], media_type="application/json")

    app = Starlette(routes=[Route("/{name}", answer)])
    door = socket.create_server(("127.0.0.1", 0))
    print(door.getsockname()[1], flush=True)
    config = uvicorn.Config(app, loop="uvloop", http="httptools", log_level="warning")
    uvicorn.Server(config).run(sockets=[door])


if __name__ == "__main__":
    main()
