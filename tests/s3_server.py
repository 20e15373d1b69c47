"""A real S3 server on this machine, moto's, with faults between it and its clients."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Faults:
    """Answers a share of the requests with an error of the server, late, or with an error after it was served."""

    def __init__(self, app: App) -> None:
        self._app, self._random = app, random.Random(5)
        self.share = 0.0
        self.away = False  # every request is answered with 503
        self.counts: Counter[str] = Counter()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        self.counts[environ["REQUEST_METHOD"]] += 1
        kinds = ("500", "503", "slow", "lost answer")
        kind = self._random.choice(kinds) if self._random.random() < self.share else "none"
        kind = "503" if self.away else kind
        self.counts[kind] += 1
        if kind == "slow":
            time.sleep(0.5)
        if kind == "lost answer":
            b"".join(self._app(environ, lambda *_: lambda _: None))
        if kind in ("none", "slow"):
            return self._app(environ, start_response)
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)) if kind != "lost answer" else None
        status, code = (
            ("503 Slow Down", "SlowDown") if kind == "503" else ("500 Internal Server Error", "InternalError")
        )
        start_response(status, [("Content-Type", "application/xml")])
        return [f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>Injected.</Message></Error>".encode()]


@contextmanager
def serve_s3() -> Iterator[tuple[str, Faults]]:
    """Yield the endpoint of a server, and its faults."""
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    faults = Faults(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, faults, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", faults
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
