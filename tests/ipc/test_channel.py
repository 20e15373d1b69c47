"""Frames arrive whole, in order, and bounded."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_batch.ipc import channel as channel_module
from tts_batch.ipc.channel import Channel, ChannelError

messages = st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=200) | st.integers(), max_size=4), max_size=8)


@settings(max_examples=50, deadline=None)
@given(messages)
def test_messages_arrive_in_order(sent: list[dict[str, Any]]) -> None:
    ours, theirs = Channel.pair()
    for message in sent:
        ours.send(message)
    ours.close()
    assert list(Channel(theirs).receive()) == sent
    theirs.close()


def test_a_long_message_arrives_while_it_is_read() -> None:
    ours, theirs = Channel.pair()
    message = {"text": "x" * 3_000_000}
    sender = threading.Thread(target=lambda: (ours.send(message), ours.close()))
    sender.start()
    assert list(Channel(theirs).receive()) == [message]
    sender.join()
    theirs.close()


def test_a_peer_that_does_not_read_is_an_error() -> None:
    one, other = socket.socketpair()
    channel = Channel(one, send_timeout_s=0.1)
    with pytest.raises(TimeoutError):
        channel.send({"text": "x" * 3_000_000})
    one.close()
    other.close()


def test_a_message_over_the_limit_is_refused_on_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = Channel.pair()
    ours.send({"text": "x" * 200})
    monkeypatch.setattr(channel_module, "MAX_FRAME_BYTES", 100)
    with pytest.raises(ChannelError):
        ours.send({"text": "x" * 200})
    with pytest.raises(ChannelError):
        next(Channel(theirs).receive())
    ours.close()
    theirs.close()
