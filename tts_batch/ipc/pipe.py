"""Python objects between two processes of ours, over a socket: arrays travel beside the pickle and are not copied.

Only for a process that this one has started itself: whoever can write into the socket can run anything here.
"""

from __future__ import annotations

import pickle
import socket
import struct
import threading
from contextlib import suppress
from typing import Any

import numpy as np

BUFFER_BYTES = 4 * 1024 * 1024  # of the socket, where the system allows it: some clips
_COUNT = struct.Struct("!I")


class Pipe:
    """One end. `send` may be called from any thread, `receive` from one only."""

    def __init__(self, peer: socket.socket) -> None:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            peer.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
        self._socket = peer
        self._sending = threading.Lock()

    def send(self, message: object) -> None:
        """Send an object, and wait until the other end has room for it. Raises OSError when that end is gone."""
        buffers: list[pickle.PickleBuffer] = []
        body = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
        parts = [body, *(buffer.raw() for buffer in buffers)]
        sizes = struct.pack(f"!{len(parts)}Q", *map(len, parts))
        with self._sending:
            self._socket.sendall(_COUNT.pack(len(parts)) + sizes)
            for part in parts:
                self._socket.sendall(part)

    def receive(self) -> Any:
        """The next object; its arrays belong to the receiver. Raises EOFError when the other end is gone."""
        (count,) = _COUNT.unpack(self._read(_COUNT.size))
        sizes = struct.unpack(f"!{count}Q", self._read(8 * count))
        body, *buffers = [self._read(size) for size in sizes]
        return pickle.loads(body, buffers=buffers)

    def close(self) -> None:
        """Let both ends know that nothing more comes or is read; a thread that waits here is woken."""
        with suppress(OSError):  # the other end was faster
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read(self, size: int) -> memoryview:
        # Not a bytearray, which is filled with zeros while other threads wait for the interpreter.
        data = rest = memoryview(np.empty(size, np.uint8))
        while rest:
            try:
                count = self._socket.recv_into(rest)
            except OSError as error:
                raise EOFError(str(error)) from error
            if not count:
                raise EOFError("the other end is closed")
            rest = rest[count:]
        return data
