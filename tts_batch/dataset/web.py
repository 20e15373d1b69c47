"""Download one file from the public internet: no private address is asked, and size and time are limited.

httpcore, the transport of httpx, speaks HTTP over connections that are made here: a host's addresses are looked up
once and checked, and the connection goes to a checked address, at every redirect anew. A name that resolves otherwise a
moment later therefore reaches nothing. Proxies are not used, since a proxy would look the name up itself.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from ipaddress import IPv6Address, IPv6Network, ip_address
from socket import SOCK_STREAM, getaddrinfo
from typing import Any, BinaryIO

import httpcore
import httpx

MAX_BYTES = 64 << 20  # a reference of 120 s takes 46 MB even as 24-bit stereo at 64 kHz
MAX_REDIRECTS = 5
SILENCE_S = 10.0  # without a byte from the server
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_DOCUMENTATION = IPv6Network("3fff::/20")  # which Python's ipaddress takes for global
_NAT64 = IPv6Network("64:ff9b::/96")
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_HEADERS: Mapping[bytes | str, bytes | str] = {
    "User-Agent": "tts-batch",
    "Accept": "*/*",
    "Accept-Encoding": "identity",
}
_NETWORK_ERRORS = (OSError, httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException)

Resolve = Callable[[str, int], list[str]]


class WebError(Exception):
    """A file could not be downloaded. `transient`: a later try may succeed."""

    def __init__(self, message: str, *, transient: bool = False) -> None:
        super().__init__(message)
        self.transient = transient


class RefusedError(WebError):
    """A file must not be downloaded: its scheme, its address or its size is not allowed."""


def resolve(host: str, port: int) -> list[str]:
    """Return the host's addresses. Raises OSError or UnicodeError when it has none."""
    found = getaddrinfo(host, port, type=SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def is_public(address: str) -> bool:
    """Whether an IP address belongs to the public internet, and so does an IPv4 address embedded in it."""
    ip = ip_address(address)
    if not isinstance(ip, IPv6Address):
        return ip.is_global and not ip.is_multicast
    if ip.ipv4_mapped is not None:
        return is_public(str(ip.ipv4_mapped))
    if ip in _NAT64:
        return is_public(str(ip_address(int(ip) & 0xFFFFFFFF)))
    if ip not in _GLOBAL_UNICAST or ip in _DOCUMENTATION or not ip.is_global:
        return False
    return all(is_public(str(inner)) for inner in (ip.sixtofour, *(ip.teredo or ())) if inner is not None)


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
    backend = _CheckedBackend(resolve, allowed, deadline)
    try:
        with httpcore.ConnectionPool(ssl.create_default_context(), network_backend=backend) as pool:
            _fetch(pool, httpx.URL(url), target)
    except (httpx.InvalidURL, UnicodeError) as error:
        raise RefusedError(f"it is not a valid URL: {error}") from error
    except _NETWORK_ERRORS as error:
        if time.monotonic() >= deadline:
            raise WebError("it took too long") from error
        raise WebError(f"the connection failed: {error or type(error).__name__}", transient=True) from error


def _fetch(pool: httpcore.ConnectionPool, url: httpx.URL, target: BinaryIO) -> None:
    for _ in range(MAX_REDIRECTS + 1):
        _check(url)
        address = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        with pool.stream("GET", address, headers=_HEADERS) as response:
            headers = httpx.Headers(response.headers)
            if response.status not in _REDIRECTS or "Location" not in headers:
                _save(response, headers.get("Content-Length", ""), target)
                return
            url = url.join(headers["Location"])
    raise WebError(f"it redirects more than {MAX_REDIRECTS} times")


def _check(url: httpx.URL) -> None:
    if url.scheme not in {"http", "https"} or not url.host or url.userinfo:
        raise RefusedError("only http:// and https:// URLs with a host and without a user name are fetched")
    if url.port is not None and not 0 < url.port < 1 << 16:
        raise RefusedError(f"{url.port} is not a port")


def _save(response: httpcore.Response, promised: str, target: BinaryIO) -> None:
    status = response.status
    if status != 200:
        transient = status >= 500 or status in {408, 425, 429}
        raise WebError(
            f"the server answers {status} {httpx.codes.get_reason_phrase(status)}".strip(), transient=transient
        )
    too_large = RefusedError(f"it is larger than the {MAX_BYTES >> 20} MB allowed")
    if promised.isdecimal() and int(promised) > MAX_BYTES:
        raise too_large
    written = 0
    for chunk in response.iter_stream():
        written += target.write(chunk)
        if written > MAX_BYTES:
            raise too_large


class _CheckedBackend(httpcore.SyncBackend):
    """Connects to addresses that were checked, until a deadline."""

    def __init__(self, resolve: Resolve, allowed: Callable[[str], bool], deadline: float) -> None:
        self._resolve, self._allowed, self._deadline = resolve, allowed, deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        failure: Exception = httpcore.ConnectError("no address")
        for address in self._checked_addresses(host, port):
            wait_s = _time_left(self._deadline, timeout)
            try:
                stream = super().connect_tcp(address, port, wait_s, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
                continue
            return _TimedStream(stream, self._deadline)
        raise failure

    def _checked_addresses(self, host: str, port: int) -> list[str]:
        try:
            addresses = self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise WebError(f"the host {host!r} is not known: {error}", transient=True) from error
        private = next((address for address in addresses if not self._allowed(address)), None)
        if private is not None:
            raise RefusedError(f"the host {host!r} has the address {private}, which is not on the public internet")
        return addresses


class _TimedStream(httpcore.NetworkStream):
    """A connection on which no operation outlasts the deadline, however slowly bytes still come."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: float) -> None:
        self._stream, self._deadline = stream, deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _time_left(self._deadline, timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _time_left(self._deadline, timeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        stream = self._stream.start_tls(ssl_context, server_hostname, _time_left(self._deadline, timeout))
        return _TimedStream(stream, self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _time_left(deadline: float, timeout: float | None) -> float:
    """Seconds that one operation may take. Raises httpcore.ReadTimeout when the deadline has passed."""
    left = min(timeout if timeout is not None else SILENCE_S, deadline - time.monotonic())
    if left <= 0:
        raise httpcore.ReadTimeout("the deadline has passed")
    return left
