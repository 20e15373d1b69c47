"""Messages arrive whole, in order and of the types that are expected; their arrays belong to the receiver."""

from __future__ import annotations

import os
import pickle
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_batch.ipc import transport
from tts_batch.ipc.transport import SHARED_BYTES, Channel, TransportError


@dataclass(frozen=True, slots=True)
class Note:
    text: str
    arrays: tuple[np.ndarray, ...] = ()


@dataclass(frozen=True, slots=True)
class Other:
    text: str


Ends = tuple[Channel[Any, Any], Channel[Any, Any]]


def open_ends() -> Ends:
    ours, theirs = socket.socketpair()
    return Channel(ours, (Note,)), Channel(theirs, (Note,))


@pytest.fixture
def ends() -> Iterator[Ends]:
    both = open_ends()
    yield both
    for end in both:
        end.close()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


array_sizes = st.lists(st.sampled_from([0, 1, 100, SHARED_BYTES // 4, SHARED_BYTES // 4 + 1, 50_000]), max_size=3)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=20), array_sizes), min_size=1, max_size=8))
def test_what_is_sent_arrives(messages: list[tuple[str, list[int]]]) -> None:
    before = open_descriptors()
    one, other = open_ends()
    sent = [
        Note(text, tuple(np.arange(size, dtype=np.float32) + number for number, size in enumerate(sizes)))
        for text, sizes in messages
    ]
    for note in sent:
        sender = threading.Thread(target=one.send, args=(note,))
        sender.start()
        arrived = other.receive()
        sender.join()
        assert arrived is not None
        assert arrived.text == note.text
        for got, want in zip(arrived.arrays, note.arrays, strict=True):
            assert np.array_equal(got, want)
            got[:1] = -1.0  # it is the receiver's own
            assert want[:1].sum() >= 0.0
    one.close()
    assert other.receive() is None
    other.close()
    arrived = got = want = None  # with the last array its memory is unmapped
    assert open_descriptors() == before


def test_large_arrays_are_sent_before_anything_is_read(ends: Ends) -> None:
    """They are in shared memory: the socket need not take them."""
    audio = np.ones(4_000_000, np.float32)
    for number in range(4):
        ends[0].send(Note(str(number), (audio,)))
    audio[:] = 0
    messages: list[Note] = []
    while len(messages) < 4:
        messages += ends[1].receive_ready() or []
    assert [note.text for note in messages] == list("0123")
    assert all(note.arrays[0].min() == 1.0 for note in messages)


def test_where_no_more_descriptors_may_travel_arrays_go_through_the_socket() -> None:
    """A user who is not root may have no more of them unread than files open."""
    program = """
import os, resource
import numpy as np
from tests.ipc.test_transport import Note, open_ends
one, other = open_ends()
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
if os.getuid() == 0:
    os.setuid(65_534)
for number in range(70):
    one.send(Note(str(number), (np.full(8_200, number, np.float32),)))
for number in range(70):
    note = other.receive()
    assert note.text == str(number) and set(note.arrays[0].tolist()) == {number}
    note.arrays[0][:] = 0
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr


def test_arrays_of_any_layout_and_type_arrive(ends: Ends) -> None:
    base = np.arange(12_000, dtype=np.float32).reshape(100, 120)
    arrays: tuple[np.ndarray, ...] = (
        base[:, ::2],
        base.T,
        base[::-1],
        base.astype(">i2"),
        base[:3, :5].astype(bool),
        np.array(7.0),
    )
    ends[0].send(Note("a", arrays))
    note = ends[1].receive()
    assert note is not None
    for got, want in zip(note.arrays, arrays, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        assert np.array_equal(got, want)
        assert got.flags.writeable


@pytest.mark.parametrize("size", [10, 50_000])
def test_a_message_that_breaks_off_is_the_end_of_the_stream(size: int) -> None:
    """The sender was killed while it sent; what came whole before it still counts."""
    ours, theirs = socket.socketpair()
    other: Channel[Any, Any] = Channel(theirs, (Note,))
    before = open_descriptors()
    one: Channel[Any, Any] = Channel(ours.dup(), (Note,))
    one.send(Note("whole", (np.ones(size, np.float32),)))
    body = pickle.dumps(Note("x" * 1_000))
    ours.sendall((struct.pack("!IIQ", len(body), 0, 0) + body)[:-1])
    one.close()
    ours.close()
    note = other.receive()
    assert note is not None
    assert note.text == "whole"
    assert other.receive() is None
    assert other.take_read() == []
    other.close()
    assert open_descriptors() < before


def test_an_end_that_is_closed_gives_back_the_descriptors_that_it_was_sent() -> None:
    before = open_descriptors()
    one, other = open_ends()
    for number in range(5):
        one.send(Note(str(number), (np.ones(50_000, np.float32),)))
    assert other.receive() is not None
    for end in (one, other):
        end.close()
    assert open_descriptors() == before


def test_what_came_behind_the_first_message_is_kept(ends: Ends) -> None:
    for text in "abc":
        ends[0].send(Note(text))
    first = ends[1].receive()
    assert first is not None
    assert [first.text, *(note.text for note in ends[1].take_read())] == ["a", "b", "c"]


def test_messages_of_several_threads_do_not_mix(ends: Ends) -> None:
    def send(number: int) -> None:
        for _ in range(20):
            ends[0].send(Note(str(number), (np.full(20_000, number, np.float32),)))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(80):
        note = ends[1].receive()
        assert note is not None
        assert set(note.arrays[0].tolist()) == {float(note.text)}
    for thread in threads:
        thread.join()


def test_a_message_over_the_limit_is_refused_on_both_ends(monkeypatch: pytest.MonkeyPatch, ends: Ends) -> None:
    body = Note("x" * 2_000)
    monkeypatch.setattr(transport, "MAX_BODY_BYTES", 1_000)
    with pytest.raises(TransportError, match="over the limit of 1000"):
        ends[0].send(body)
    monkeypatch.setattr(transport, "MAX_BODY_BYTES", 4_000)
    ends[0].send(body)
    monkeypatch.setattr(transport, "MAX_BODY_BYTES", 1_000)
    with pytest.raises(TransportError, match="over the limits"):
        ends[1].receive()


def test_only_expected_types_arrive(ends: Ends) -> None:
    ends[0].send(Other("a"))
    with pytest.raises(TransportError, match="a message of type Other, which is not expected here"):
        ends[1].receive()


@pytest.mark.parametrize("body", [b"no pickle at all", pickle.dumps(Note("a"))[:-5]])
def test_what_is_no_message_is_an_error(body: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        other: Channel[Any, Any] = Channel(theirs, (Note,))
        ours.sendall(struct.pack("!IIQ", len(body), 0, 0) + body)
        with pytest.raises(TransportError, match="cannot be read"):
            other.receive()
        other.close()


def test_shared_memory_that_is_missing_or_short_is_an_error() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        other: Channel[Any, Any] = Channel(theirs, (Note,))
        body = pickle.dumps(Note("a"))
        ours.sendall(struct.pack("!IIQQ", len(body), 1, 100, 100) + body)
        with pytest.raises(TransportError, match="without its shared memory"):
            other.receive()
        other.close()


def test_a_peer_that_does_not_read_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "SEND_TIMEOUT_S", 0.1)
    one, other = open_ends()
    with pytest.raises(TimeoutError):
        for _ in range(1_000):
            one.send(Note("x" * 100_000))
    one.close()
    other.close()


def test_an_end_that_is_gone_is_reported(ends: Ends) -> None:
    ends[1].close()
    assert ends[0].receive() is None
    with pytest.raises(OSError, match=r".*"):
        for _ in range(100):
            ends[0].send(Note("x" * 10_000))
