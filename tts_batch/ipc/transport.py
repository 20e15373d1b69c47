"""The one transport between processes of a run: pickled messages over a Unix socket pair, arrays in shared memory.

Only for a process that this one has started itself: whoever can write into the socket can run anything here.
"""

from __future__ import annotations

import errno
import mmap
import os
import pickle
import select
import socket
import struct
import threading
from collections import deque
from contextlib import suppress
from typing import Generic, TypeVar

Sends = TypeVar("Sends")
Receives = TypeVar("Receives")

SEND_TIMEOUT_S = 60.0  # a peer that stops reading is an error, not a wait
MAX_BODY_BYTES = 64 * 1024 * 1024  # of one message, without its arrays
SHARED_BYTES = 32 * 1024  # arrays of this size and more travel in shared memory
_BUFFER_BYTES = 1024 * 1024  # of the socket, where the system allows it
_READ_BYTES = 256 * 1024
_HEADER = struct.Struct("!IIQ")  # bytes of the body, number of arrays, bytes of all arrays if they are in shared memory
_SIZE = struct.Struct("!Q")
_FD = struct.Struct("i")
_MAX_ARRAYS = 100_000
_ANCILLARY_BYTES = socket.CMSG_SPACE(64 * _FD.size)


class TransportError(Exception):
    """A message that is malformed, too large, or of a type that this end does not expect."""


class Channel(Generic[Sends, Receives]):
    """One end. `send` may be called from any thread, `receive` from one thread only.

    Arrays of a message are written into an anonymous file in memory, whose descriptor goes over the socket; the peer
    maps it, so that they are copied once and belong to the receiver.
    """

    def __init__(
        self, peer: socket.socket, receives: tuple[type[Receives], ...], *, shares_memory: bool = True
    ) -> None:
        """`receives`: the types of message that this end accepts. Over a network no memory can be shared."""
        self._shares_memory = shares_memory
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            peer.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        peer.settimeout(SEND_TIMEOUT_S)
        peer.set_inheritable(False)
        self._socket = peer
        self._receives = receives
        self._sending = threading.Lock()
        self._buffer = bytearray()
        self._descriptors: deque[int] = deque()  # received, and not yet mapped

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Sends) -> None:
        """Send one message. Raises OSError when the peer is gone or does not read, TransportError for one too large."""
        buffers: list[memoryview] = []
        body = pickle.dumps(message, protocol=5, buffer_callback=lambda buffer: buffers.append(buffer.raw()))
        if len(body) > MAX_BODY_BYTES:
            raise TransportError(f"A message of {len(body)} bytes is over the limit of {MAX_BODY_BYTES}.")
        sizes = b"".join(_SIZE.pack(buffer.nbytes) for buffer in buffers)
        total_bytes = sum(buffer.nbytes for buffer in buffers)
        is_small = total_bytes < SHARED_BYTES or not self._shares_memory
        if is_small or not self._send_shared(sizes, body, buffers, total_bytes):
            with self._sending:
                self._socket.sendall(b"".join([_HEADER.pack(len(body), len(buffers), 0), sizes, body, *buffers]))

    def _send_shared(self, sizes: bytes, body: bytes, buffers: list[memoryview], total_bytes: int) -> bool:
        """Send a message whose arrays are in shared memory; False where the system lets no more descriptors travel."""
        frame = b"".join([_HEADER.pack(len(body), len(buffers), total_bytes), sizes, body])
        descriptor = _shared_file(buffers)
        try:
            with self._sending:
                sent = socket.send_fds(self._socket, [frame], [descriptor])
                self._socket.sendall(memoryview(frame)[sent:])
        except OSError as error:
            if error.errno == errno.ETOOMANYREFS:  # more are unread than a user may have open; nothing was sent
                return False
            raise
        finally:
            os.close(descriptor)
        return True

    def receive_ready(self) -> list[Receives] | None:
        """Read what has arrived, after a selector reported the socket readable; None when the peer has closed its end.

        Raises TransportError.
        """
        return self.take_read() if self._read() else None

    def receive(self) -> Receives | None:
        """Wait for the next message, however long the peer is silent; None when it has closed its end.

        What came behind it is left to `take_read`. Raises TransportError.
        """
        readable = select.poll()
        readable.register(self._socket, select.POLLIN)
        while (message := self._take_message()) is None:
            readable.poll()
            if not self._read():
                return None
        return message

    def take_read(self) -> list[Receives]:
        """Return the messages that were read whole already. Raises TransportError."""
        messages = []
        while (message := self._take_message()) is not None:
            messages.append(message)
        return messages

    def close(self) -> None:
        """Close this end: the peer reads the end of the stream."""
        with suppress(OSError):  # the peer was faster
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        while self._descriptors:
            os.close(self._descriptors.popleft())

    def _read(self) -> bool:
        """Read what the socket holds; False at the end of the stream."""
        try:
            data, ancillary, _, _ = self._socket.recvmsg(_READ_BYTES, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError:
            return False
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self._descriptors.extend(struct.unpack(f"{len(content) // _FD.size}{_FD.format}", content))
        self._buffer += data
        return bool(data)

    def _take_message(self) -> Receives | None:
        """Take one whole message out of what was read, if there is one."""
        if len(self._buffer) < _HEADER.size:
            return None
        body_bytes, num_arrays, shared_bytes = _HEADER.unpack_from(self._buffer)
        if body_bytes > MAX_BODY_BYTES or num_arrays > _MAX_ARRAYS:
            raise TransportError(f"A message of {body_bytes} bytes and {num_arrays} arrays is over the limits.")
        start = _HEADER.size + _SIZE.size * num_arrays
        if len(self._buffer) < start:
            return None
        sizes = [_SIZE.unpack_from(self._buffer, at)[0] for at in range(_HEADER.size, start, _SIZE.size)]
        end = start + body_bytes + (0 if shared_bytes else sum(sizes))
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[start : start + body_bytes])
        arrays = self._map(shared_bytes) if shared_bytes else memoryview(self._buffer[start + body_bytes : end])
        del self._buffer[:end]
        parts, at = [], 0
        for size in sizes:
            parts.append(arrays[at : at + size])
            at += size
        return self._checked(body, parts)

    def _checked(self, body: bytes, arrays: list[memoryview]) -> Receives:
        try:
            message = pickle.loads(body, buffers=arrays)
        except Exception as error:  # what is no pickle raises almost anything
            raise TransportError(f"A message cannot be read: {type(error).__name__}: {error}") from error
        if not isinstance(message, self._receives):
            raise TransportError(f"Received a message of type {type(message).__name__}, which is not expected here.")
        return message

    def _map(self, size_bytes: int) -> memoryview:
        """Map the next shared file; it is freed with the last array in it."""
        if not self._descriptors:
            raise TransportError("A message came without its shared memory.")
        descriptor = self._descriptors.popleft()
        try:
            if os.fstat(descriptor).st_size != size_bytes:  # to read beyond its end would end this process
                raise TransportError("The shared memory of a message has not the size that the message gives.")
            return memoryview(mmap.mmap(descriptor, size_bytes))
        finally:
            os.close(descriptor)


def _shared_file(buffers: list[memoryview]) -> int:
    """Return the descriptor of an anonymous file in memory that holds `buffers` one after another."""
    descriptor = os.memfd_create("tts-batch", os.MFD_CLOEXEC)
    try:
        for buffer in buffers:
            rest = buffer
            while rest:
                rest = rest[os.write(descriptor, rest) :]
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
