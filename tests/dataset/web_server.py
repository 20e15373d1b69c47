"""A real HTTP server on this machine for tests of fetching, and the rules under which it may be asked."""

from __future__ import annotations

import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO

from tts_batch.dataset.web import download, is_public

HOST = "speech.example"  # resolves to this machine, by `resolve_here` only
CERTIFICATE = (
    Path(__file__).parents[1] / "data" / "speech.example.pem"
)  # of HOST, with its key, and trusted by no store


class WebServer(ThreadingHTTPServer):
    """Serves `files`, redirects what is `moved`, lets `answers` write theirs, and counts what it is asked."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, certificate: Path | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._scheme = "http"
        if certificate is not None:
            self._scheme = "https"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            # The handshake is left to the connection's own thread.
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.files: dict[str, bytes] = {}
        self.moved: dict[str, str] = {}
        self.answers: dict[str, Callable[[BinaryIO], None]] = {}
        self.busy: Counter[str] = Counter()  # path → how often it still answers 503
        self.asked: Counter[str] = Counter()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is part of these tests."""

    def url(self, path: str, host: str = HOST) -> str:
        return f"{self._scheme}://{host}:{self.server_port}{path}"


class _Handler(BaseHTTPRequestHandler):
    server: WebServer

    def do_GET(self) -> None:
        server, path = self.server, self.path
        server.asked[path] += 1
        if path in server.answers:
            server.answers[path](self.wfile)
        elif server.busy[path]:
            server.busy[path] -= 1
            self._send(503, b"")
        elif path in server.moved:
            self._send(302, b"", Location=server.moved[path])
        elif path in server.files:
            self._send(200, server.files[path])
        else:
            self._send(404, b"gone")

    def _send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def web_server(certificate: Path | None = None) -> Iterator[WebServer]:
    """A server in a thread, on a port of its own; with a `certificate` it speaks HTTPS."""
    with WebServer(certificate) as server:
        thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.01), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def resolve_here(host: str, port: int) -> list[str]:
    """HOST is this machine; every other host is what it says."""
    return ["127.0.0.1"] if host == HOST else [host]


def only_this_server(address: str) -> bool:
    """The one relaxation for tests: 127.0.0.1 counts as public. 127.0.0.2, as local, does not."""
    return address == "127.0.0.1" or is_public(address)


download_here = partial(download, resolve=resolve_here, allowed=only_this_server)


def drip(wfile: BinaryIO) -> None:
    """Headers without an end, a byte at a time, each before a time limit on silence would strike."""
    wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while True:
        wfile.write(b"a")
        wfile.flush()
        time.sleep(0.02)
