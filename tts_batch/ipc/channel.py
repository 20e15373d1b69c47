"""Messages between the parent and a worker: length-prefixed JSON frames over a socket pair. No pickle, no audio."""

from __future__ import annotations

import json
import selectors
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

MAX_FRAME_BYTES = 64 * 1024 * 1024
_HEADER = struct.Struct("!I")

Message = dict[str, Any]


class ChannelError(Exception):
    """A frame that cannot be one, or a peer that does not read."""


class Channel:
    """One end. `send` may be called from any thread; `receive` and `receive_ready` from one only."""

    def __init__(self, peer: socket.socket, send_timeout_s: float = 60.0) -> None:
        self._socket = peer
        self._buffer = bytearray()
        self._sending = threading.Lock()
        peer.settimeout(send_timeout_s)  # a peer that stops reading is an error, not a wait

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """Return the parent's end and the socket to hand to a worker."""
        ours, theirs = socket.socketpair()
        return cls(ours), theirs

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Send one message. Raises OSError when the peer is gone or does not read."""
        body = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
        if len(body) > MAX_FRAME_BYTES:
            raise ChannelError(f"A message of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}.")
        with self._sending:
            self._socket.sendall(_HEADER.pack(len(body)) + body)

    def receive_ready(self) -> list[Message] | None:
        """Read what has arrived, after a selector said so; None when the peer has closed its end."""
        try:
            data = self._socket.recv(1 << 18)
        except ConnectionError:
            data = b""
        if not data:
            return None
        self._buffer += data
        return list(self._take_frames())

    def receive(self) -> Iterator[Message]:
        """Yield messages until the peer closes its end, however long it is silent."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            while True:
                selector.select()
                messages = self.receive_ready()
                if messages is None:
                    return
                yield from messages

    def close(self) -> None:
        self._socket.close()

    def _take_frames(self) -> Iterator[Message]:
        while len(self._buffer) >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._buffer)
            if length > MAX_FRAME_BYTES:
                raise ChannelError(f"A frame of {length} bytes is over the limit of {MAX_FRAME_BYTES}.")
            end = _HEADER.size + length
            if len(self._buffer) < end:
                return
            message = json.loads(bytes(self._buffer[_HEADER.size : end]).decode("utf-8", "surrogatepass"))
            del self._buffer[:end]
            yield message
