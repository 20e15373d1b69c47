"""What the engine and its host program tell each other, and the channel that carries it: pickled frames with limits.

Both ends are this package's own processes. The channel never blocks for longer than it is told.
"""

from __future__ import annotations

import pickle
import select
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_MESSAGE_BYTES = 1 << 27  # four times the longest clip
_HEADER = struct.Struct("!I")


@dataclass(frozen=True, slots=True)
class OpenHost:
    """The first message to the host."""

    model: str  # a local checkpoint folder
    deploy_file: str
    start_timeout_s: float


@dataclass(frozen=True, slots=True)
class HostRequest:
    """One request, as `AsyncOmni.generate` takes it."""

    request_id: str
    prompt_tokens: int  # the length of the placeholder prompt
    information: Mapping[str, list[Any]]  # additional_information: every value in a list of its own
    sampling: Mapping[str, Any]  # the talker's SamplingParams


@dataclass(frozen=True, slots=True)
class AbortHostRequest:
    """End a request; nothing is answered."""

    request_id: str


@dataclass(frozen=True, slots=True)
class HostReady:
    """Both stages are ready."""


@dataclass(frozen=True, slots=True)
class HostFailed:
    """The host ends, with all that it has: it could not start, or the engine in it is dead."""

    error: str


@dataclass(frozen=True, slots=True, eq=False)
class HostResult:
    """What the engine returned for a request. Nothing in it has been checked."""

    request_id: str
    audio: NDArray[np.float32] | None  # [samples]
    sample_rate: int | None
    num_tokens: int | None  # that the talker sampled, the end token too; None: not reported
    finish_reason: str | None  # the talker's: stop, length, abort, …
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostRequestFailed:
    """The engine raised for this request, and goes on."""

    request_id: str
    error: str


ToHost = OpenHost | HostRequest | AbortHostRequest
FromHost = HostReady | HostFailed | HostResult | HostRequestFailed


class ChannelError(Exception):
    """The other end is gone, does not read, or sent what is no message. The text is a sentence without its subject."""


def encode(message: ToHost | FromHost) -> bytes:
    """A message as a frame."""
    content = pickle.dumps(message, protocol=5)
    if len(content) > MAX_MESSAGE_BYTES:
        raise ChannelError(f"a message of {len(content)} bytes is too large (the limit is {MAX_MESSAGE_BYTES})")
    return _HEADER.pack(len(content)) + content


def frame_length(header: bytes) -> int:
    """The length of the content that follows a header. Raises ChannelError when it is beyond the limit."""
    (length,) = _HEADER.unpack(header)
    if length > MAX_MESSAGE_BYTES:
        raise ChannelError(f"sent a frame of {length} bytes (the limit is {MAX_MESSAGE_BYTES})")
    return int(length)


HEADER_BYTES = _HEADER.size


class HostChannel:
    """The engine's end, used from one thread."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._read = bytearray()

    def send(self, message: ToHost, timeout_s: float) -> None:
        """Raises ChannelError when the host is gone, or does not read within `timeout_s`."""
        self._socket.settimeout(timeout_s)
        try:
            self._socket.sendall(encode(message))
        except TimeoutError:
            raise ChannelError(f"has not read a message for {timeout_s:g} s") from None
        except OSError:
            raise ChannelError("has ended") from None

    def receive(self, timeout_s: float) -> list[FromHost]:
        """The messages that have come, waiting at most `timeout_s` for the first. Raises ChannelError at the end."""
        deadline_s = time.monotonic() + timeout_s
        while not (messages := self._take()):
            left_s = deadline_s - time.monotonic()
            if not select.select([self._socket], [], [], max(0.0, left_s))[0]:
                return []
            try:
                content = self._socket.recv(1 << 20)
            except OSError:
                content = b""
            if not content:
                raise ChannelError("has ended")
            self._read += content
        return messages

    def close(self) -> None:
        self._socket.close()

    def _take(self) -> list[FromHost]:
        messages: list[FromHost] = []
        while len(self._read) >= HEADER_BYTES:
            end = HEADER_BYTES + frame_length(bytes(self._read[:HEADER_BYTES]))
            if len(self._read) < end:
                break
            message = pickle.loads(self._read[HEADER_BYTES:end])
            del self._read[:end]
            if not isinstance(message, FromHost):
                raise ChannelError(f"sent {message!r}, which is no message")
            messages.append(message)
        return messages
