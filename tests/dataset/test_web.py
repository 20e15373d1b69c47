"""Downloads: which addresses may be asked, and what ends one."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from functools import partial
from typing import BinaryIO

import pytest

from tests.dataset.web_server import (
    CERTIFICATE,
    HOST,
    WebServer,
    download_here,
    drip,
    only_this_server,
    resolve_here,
    web_server,
)
from tts_batch.dataset import web
from tts_batch.dataset.web import RefusedError, WebError, download, is_public


@pytest.fixture
def server() -> Iterator[WebServer]:
    with web_server() as server:
        yield server


def fetched(url: str, within_s: float = 10.0) -> bytes:
    target = io.BytesIO()
    download_here(url, target, time.monotonic() + within_s)
    return target.getvalue()


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.8.9.1", "10.0.0.1", "172.16.3.4", "192.168.1.1", "169.254.169.254", "100.64.0.1"),
        *("0.0.0.0", "224.0.0.1", "255.255.255.255", "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "ff02::1"),
        *(
            "::127.0.0.1",
            "::a9fe:a9fe",
            "::ffff:0:127.0.0.1",
            "64:ff9b:1::1",
            "fec0::1",
            "5f00::1",
            "3fff::1",
            "2001:db8::1",
        ),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2002:c0a8:101::"),
    ],
)
def test_addresses_inside_a_network(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_addresses(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.1", "2130706433", "0x7f000001"])
def test_this_machine_is_refused_however_it_is_written(server: WebServer, host: str) -> None:
    with pytest.raises(WebError, match=r"not on the public internet|not known"):
        download(server.url("/a", host), io.BytesIO(), time.monotonic() + 10)
    assert not server.asked


@pytest.mark.parametrize(
    "url",
    [
        "ftp://h/a",
        "file:///etc/passwd",
        "http:///a",
        "http://me:pw@h/a",
        "http://h:99999/a",
        "http://h:0/a",
        "http://[::1/a",
        "//h/a",
        "",
    ],
)
def test_urls_that_are_not_for_us(url: str) -> None:
    with pytest.raises(RefusedError):
        fetched(url)


def test_a_file(server: WebServer) -> None:
    server.files["/a%20b.wav?x=1"] = b"sound"
    assert fetched(server.url("/a b.wav?x=1")) == b"sound"
    assert fetched(server.url("/a%20b.wav?x=1")) == b"sound"
    with pytest.raises(WebError, match="404") as caught:
        fetched(server.url("/none"))
    assert not caught.value.transient


def test_the_checked_address_is_the_one_asked(server: WebServer) -> None:
    """A name may resolve otherwise a moment later: it is looked up once."""
    server.files["/a"] = b"sound"
    answers = iter([["127.0.0.1"], ["127.0.0.2"]])
    target = io.BytesIO()
    rebinding = partial(download, resolve=lambda host, port: next(answers), allowed=only_this_server)
    rebinding(server.url("/a"), target, time.monotonic() + 10)
    assert target.getvalue() == b"sound"
    with pytest.raises(RefusedError, match=r"127\.0\.0\.2"):
        rebinding(server.url("/a"), io.BytesIO(), time.monotonic() + 10)
    assert server.asked == {"/a": 1}


def test_one_local_address_among_public_ones_refuses_the_host(server: WebServer) -> None:
    with pytest.raises(RefusedError, match=r"10\.0\.0\.1"):
        download(server.url("/a"), io.BytesIO(), time.monotonic() + 10, resolve=lambda *_: ["8.8.8.8", "10.0.0.1"])


def test_redirects_are_followed_and_checked(server: WebServer) -> None:
    server.files["/a"] = b"sound"
    server.moved |= {"/1": "/2", "/2": server.url("/a"), "/loop": "/loop", "/out": server.url("/a", "127.0.0.2")}
    server.moved["/file"] = "file:///etc/passwd"
    assert fetched(server.url("/1")) == b"sound"
    with pytest.raises(WebError, match="redirects more than 5 times"):
        fetched(server.url("/loop"))
    for path in ("/out", "/file"):
        with pytest.raises(RefusedError):
            fetched(server.url(path))
    assert server.asked["/a"] == 1


def test_a_redirect_is_followed_without_reading_its_body(server: WebServer) -> None:
    server.files["/a"] = b"sound"

    def moved(wfile: BinaryIO) -> None:
        wfile.write(b"HTTP/1.1 302 Found\r\nLocation: /a\r\nContent-Length: 999999999\r\n\r\nx")

    server.answers["/1"] = moved
    assert fetched(server.url("/1")) == b"sound"


def test_a_proxy_of_the_environment_is_not_used(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    server.files["/a"] = b"sound"
    assert fetched(server.url("/a")) == b"sound"


def test_a_compressed_answer_is_kept_as_it_came(server: WebServer) -> None:
    server.answers["/a"] = lambda wfile: (
        wfile.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nbomb") and None
    )
    assert fetched(server.url("/a")) == b"bomb"


def test_a_certificate_is_checked_for_the_host_and_not_for_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with web_server(CERTIFICATE) as server:
        server.files["/a"] = b"sound"
        with pytest.raises(WebError, match="certificate verify failed"):
            fetched(server.url("/a"))
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
        assert fetched(server.url("/a")) == b"sound"
        with pytest.raises(WebError, match="certificate verify failed"):
            fetched(server.url("/a", "127.0.0.1"))


@pytest.mark.parametrize("announced", [True, False])
def test_size_has_a_limit(server: WebServer, monkeypatch: pytest.MonkeyPatch, announced: bool) -> None:
    monkeypatch.setattr(web, "MAX_BYTES", 1000)

    def answer(wfile: BinaryIO) -> None:
        wfile.write(
            b"HTTP/1.1 200 OK\r\n" + (b"Content-Length: 9999\r\n" if announced else b"") + b"\r\n" + b"x" * 9999
        )

    server.answers["/big"] = answer
    server.files["/fits"] = b"x" * 1000
    with pytest.raises(RefusedError, match="larger than"):
        fetched(server.url("/big"))
    assert len(fetched(server.url("/fits"))) == 1000


def test_a_server_that_drips_is_cut_off_at_the_deadline(server: WebServer) -> None:
    server.answers["/slow"] = drip
    started = time.monotonic()
    with pytest.raises(WebError, match="too long"):
        fetched(server.url("/slow"), within_s=0.3)
    assert time.monotonic() - started < 5


def test_a_server_that_is_silent_times_out(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "SILENCE_S", 0.2)
    server.answers["/mute"] = lambda wfile: time.sleep(2)
    with pytest.raises(WebError, match="connection failed") as caught:
        fetched(server.url("/mute"))
    assert caught.value.transient


def test_a_file_that_ends_early_is_none(server: WebServer) -> None:
    server.answers["/half"] = lambda wfile: wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf") and None
    with pytest.raises(WebError, match="received 4 bytes, expected 10") as caught:
        fetched(server.url("/half"))
    assert caught.value.transient


def test_an_unknown_host_and_a_closed_port() -> None:
    def unknown(host: str, port: int) -> list[str]:
        raise OSError("no such host")

    with pytest.raises(WebError, match="not known"):
        download(f"http://{HOST}/a", io.BytesIO(), time.monotonic() + 10, resolve=unknown)
    with web_server() as server:
        url = server.url("/a")
    with pytest.raises(WebError, match="connection failed"):
        download(url, io.BytesIO(), time.monotonic() + 10, resolve=resolve_here, allowed=only_this_server)
