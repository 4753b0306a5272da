"""moto's server with its requests one after the other: `python -m brigade.testing.servers.moto_apart PORT`.

moto looks at a write's condition and then writes, in a thread for each request: when the interpreter changes threads
in between, two swaps from one etag succeed. One lock around each request makes it the store that it stands for.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import (  # pyright: ignore[reportMissingTypeStubs]
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import run_simple


class OneByOne:
    """A WSGI application that answers one request at a time."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application
        self._busy = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        with self._busy:
            return self._application(environ, start_response)


def main(port: int) -> None:
    """Serve on this machine alone until the process is ended."""
    application = OneByOne(DomainDispatcherApplication(create_backend_app))
    run_simple("127.0.0.1", port, application, threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    main(int(sys.argv[1]))
