"""One file from the public internet: no address inside a network is asked, and nothing is waited for without an end.

A host's addresses are looked up once and checked, and the connection goes to the checked address, at every redirect
anew: a name that resolves otherwise the next time reaches nothing. Proxies are not used, since a proxy would look the
name up itself.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from ipaddress import IPv6Address, IPv6Network, ip_address
from threading import Timer
from typing import BinaryIO
from urllib.parse import SplitResult, quote, urljoin, urlsplit

MAX_BYTES = 64 << 20  # a reference of 120 s takes 46 MB even as 24-bit stereo at 64 kHz
MAX_REDIRECTS = 5
SILENCE_S = 10.0  # without a byte from the other side
_NAT64 = IPv6Network("64:ff9b::/96")
_SAFE = "/%:@!$&'()*+,;=~-._"  # in a path or query, for what is escaped already must stay so

Resolve = Callable[[str, int], list[str]]


class WebError(Exception):
    """A file cannot be had. `passing`: it may be there a little later."""

    def __init__(self, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


class RefusedError(WebError):
    """A file must not be had: its scheme, its address or its size is not allowed."""


def resolve(host: str, port: int) -> list[str]:
    """Return the host's addresses. Raises OSError or UnicodeError when it has none."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def is_public(address: str) -> bool:
    """Whether an IP address belongs to the public internet, and so does an IPv4 address packed into it."""
    ip = ip_address(address)
    if ip.is_multicast or not ip.is_global:
        return False
    if isinstance(ip, IPv6Address):
        packed = [ip.ipv4_mapped, ip.sixtofour, *(ip.teredo or ())]
        if ip in _NAT64:
            packed.append(ip_address(int(ip) & 0xFFFFFFFF))
        return all(is_public(str(inner)) for inner in packed if inner is not None)
    return True


def download(
    url: str,
    target: BinaryIO,
    deadline: float,
    *,
    resolve: Resolve = resolve,
    allowed: Callable[[str], bool] = is_public,
) -> None:
    """Write the file at `url` into `target`, which is at its start. `deadline` is a time of time.monotonic().

    Raises WebError.
    """
    for _ in range(MAX_REDIRECTS + 1):
        parts = _split(url)
        with _answer(parts, _checked_addresses(parts, resolve, allowed), deadline) as answer:
            if answer.status not in {301, 302, 303, 307, 308}:
                _save(answer, target)
                return
            url = urljoin(url, answer.getheader("Location", ""))
    raise WebError(f"it redirects more than {MAX_REDIRECTS} times")


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError as error:
        raise RefusedError(f"it is no URL: {error}") from error
    if not usable or parts.username is not None:
        raise RefusedError("only http:// and https:// URLs with a host and without a user name are fetched")
    return parts


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def _checked_addresses(parts: SplitResult, resolve: Resolve, allowed: Callable[[str], bool]) -> list[str]:
    host = parts.hostname or ""
    try:
        addresses = resolve(host, _port(parts))
    except (OSError, UnicodeError) as error:
        raise WebError(f"the host {host!r} is not known: {error}", passing=True) from error
    inside = next((address for address in addresses if not allowed(address)), None)
    if inside is not None:
        raise RefusedError(f"the host {host!r} has the address {inside}, which is not on the public internet")
    return addresses


@contextmanager
def _answer(parts: SplitResult, addresses: list[str], deadline: float) -> Iterator[HTTPResponse]:
    """Ask one of `addresses` for the file. At the deadline the connection is cut, however slowly bytes still come."""
    try:
        with closing(_connect(parts, addresses, deadline)) as connection:
            timer = Timer(max(0.0, deadline - time.monotonic()), _cut, [connection])
            timer.daemon = True
            timer.start()
            try:
                with closing(_ask(parts, connection)) as answer:
                    yield answer
            finally:
                timer.cancel()
            if time.monotonic() >= deadline:  # what came may end where it was cut
                raise TimeoutError
    except (OSError, HTTPException, ValueError) as error:
        if time.monotonic() >= deadline:
            raise WebError("it took too long") from error
        raise WebError(f"the connection failed: {error or type(error).__name__}", passing=True) from error


def _connect(parts: SplitResult, addresses: list[str], deadline: float) -> socket.socket:
    failure: OSError = OSError("no address")
    for address in addresses:
        wait_s = min(SILENCE_S, deadline - time.monotonic())
        if wait_s <= 0:
            raise TimeoutError("the deadline has passed")
        try:
            plain = socket.create_connection((address, _port(parts)), wait_s)
        except OSError as error:
            failure = error
            continue
        if parts.scheme == "http":
            return plain
        return ssl.create_default_context().wrap_socket(plain, server_hostname=parts.hostname)
    raise failure


def _cut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _ask(parts: SplitResult, connection: socket.socket) -> HTTPResponse:
    http = HTTPConnection(parts.hostname or "", _port(parts))
    http.sock = connection  # made by us, so that nothing looks the name up again
    path = quote(parts.path or "/", safe=_SAFE) + (f"?{quote(parts.query, safe=_SAFE + '?')}" if parts.query else "")
    http.request("GET", path, headers={"User-Agent": "tts-batch", "Accept": "*/*"})
    return http.getresponse()


def _save(answer: HTTPResponse, target: BinaryIO) -> None:
    if answer.status != 200:
        passing = answer.status >= 500 or answer.status in {408, 425, 429}
        raise WebError(f"the server answers {answer.status} {answer.reason}", passing=passing)
    promised, written = answer.length, 0
    too_large = RefusedError(f"it is larger than the {MAX_BYTES >> 20} MB allowed")
    if (promised or 0) > MAX_BYTES:
        raise too_large
    while chunk := answer.read1(1 << 16):
        written += target.write(chunk)
        if written > MAX_BYTES:
            raise too_large
    if promised is not None and written < promised:
        raise WebError(f"only {written} of {promised} bytes came", passing=True)
