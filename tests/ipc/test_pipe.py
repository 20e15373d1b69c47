"""Objects over a socket: whole, in order, arrays owned by the receiver; an end that is gone is said at once."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tts_batch.ipc.pipe import Pipe


@pytest.fixture
def ends() -> Iterator[tuple[Pipe, Pipe]]:
    ours, theirs = map(Pipe, socket.socketpair())
    yield ours, theirs
    ours.close()
    theirs.close()


ARRAYS = hnp.arrays(st.sampled_from([np.float32, np.int16]), hnp.array_shapes(min_dims=1, max_dims=2, min_side=0))


@settings(deadline=None)
@given(st.lists(st.tuples(st.text(), st.none() | ARRAYS), max_size=4))
def test_what_is_sent_arrives(messages: list[tuple[str, np.ndarray | None]]) -> None:
    ours, theirs = map(Pipe, socket.socketpair())
    for message in messages:
        ours.send(message)
    for text, array in messages:
        got_text, got = theirs.receive()
        assert got_text == text
        if array is None:
            assert got is None
            continue
        np.testing.assert_array_equal(got, array)
        assert got.dtype == array.dtype
        assert got.flags.writeable
    ours.close()
    theirs.close()


def test_an_array_that_is_not_contiguous_arrives(ends: tuple[Pipe, Pipe]) -> None:
    array = np.arange(24, dtype=np.float32).reshape(4, 6)[:, ::2]
    ends[0].send(array)
    np.testing.assert_array_equal(ends[1].receive(), array)


def test_messages_of_several_threads_do_not_mix(ends: tuple[Pipe, Pipe]) -> None:
    def send(number: int) -> None:
        for _ in range(20):
            ends[0].send((number, np.full(50_000, number, np.int32)))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(80):
        number, array = ends[1].receive()
        assert (array == number).all()
    for thread in threads:
        thread.join(30)


def test_an_end_that_is_gone_is_said(ends: tuple[Pipe, Pipe]) -> None:
    ours, theirs = ends
    ours.send("last")
    ours.close()
    assert theirs.receive() == "last"
    with pytest.raises(EOFError):
        theirs.receive()
    with pytest.raises(OSError, match=r"Broken pipe|closed|Bad file"):
        for _ in range(100):
            theirs.send(np.zeros(1_000_000))


def test_closing_wakes_who_waits(ends: tuple[Pipe, Pipe]) -> None:
    ended: list[type] = []

    def wait() -> None:
        try:
            ends[0].receive()
        except EOFError as error:
            ended.append(type(error))

    thread = threading.Thread(target=wait)
    thread.start()
    ends[0].close()
    thread.join(30)
    assert ended == [EOFError]
