"""What the two threads of an engine share: each request is in one state, and neither waits longer than it must."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from tests.engine.asking import ask
from tests.engine.scripted import wait_until
from tts_batch.engine.errors import DuplicateRequest, EngineError
from tts_batch.engine.exchange import Exchange
from tts_batch.engine.request import SpeechResult


def done(request_id: str, num_samples: int = 1) -> SpeechResult:
    return SpeechResult(request_id, np.zeros(num_samples, np.float32), 24_000, None, 1, "stop", True)


def names(results: list[SpeechResult] | None) -> list[tuple[str, str]]:
    return [(result.request_id, result.finish_reason) for result in results or []]


def test_requests_are_taken_in_order_and_end_once(caplog: pytest.LogCaptureFixture) -> None:
    exchange = Exchange(10)
    for name in "abc":
        exchange.add(ask(name))
    assert exchange.num_waiting == exchange.num_in_flight == 3
    assert [request.request_id for request in exchange.take(2)] == ["a", "b"]
    assert set(exchange.owed) == {"a", "b"}
    exchange.put([done("b"), done("b"), done("c")])  # the last was never taken
    assert names(exchange.collect(0.0)) == [("b", "stop")]
    assert caplog.text.count("is dropped") == 2
    assert exchange.collect(0.0) is None
    assert (exchange.num_waiting, exchange.num_in_flight, set(exchange.owed)) == (1, 2, {"a"})


def test_an_id_is_free_once_its_result_is_collected() -> None:
    exchange = Exchange(10)
    exchange.add(ask("a"))
    exchange.take(1)
    exchange.put([done("a")])
    with pytest.raises(DuplicateRequest):
        exchange.add(ask("a"))
    exchange.collect(0.0)
    exchange.add(ask("a"))


def test_an_abort_ends_a_request_in_every_state() -> None:
    exchange = Exchange(10)
    for name in ("ended", "taken", "waiting"):
        exchange.add(ask(name))
    exchange.take(2)
    exchange.put([done("ended")])
    for name in ("ended", "taken", "waiting", "waiting", "unknown"):
        exchange.abort(name)
    assert exchange.take_aborted() == ["taken"]
    assert exchange.take_aborted() == []
    assert exchange.num_waiting == 0
    assert names(exchange.collect(0.0)) == [("ended", "cancelled"), ("waiting", "cancelled")]
    exchange.put([done("taken")])  # though it ended well meanwhile
    assert names(exchange.collect(0.0)) == [("taken", "cancelled")]
    exchange.add(ask("ended"))
    exchange.take(1)
    assert exchange.take_aborted() == []


def test_a_request_that_was_taken_ends_at_once_where_it_cannot_be_stopped() -> None:
    exchange = Exchange(10, aborts_at_once=True)
    exchange.add(ask("a"))
    exchange.take(1)
    exchange.abort("a")
    assert names(exchange.collect(0.0)) == [("a", "cancelled")]
    exchange.add(ask("a"))
    exchange.put([done("a")])  # of the first one
    exchange.take(1)
    exchange.put([done("a", 3)])
    assert [result.audio.size for result in exchange.collect(0.0)] == [3]


def test_an_abort_that_comes_too_late_is_not_the_next_request_s() -> None:
    exchange = Exchange(10)
    exchange.add(ask("a"))
    exchange.take(1)
    exchange.abort("a")
    exchange.put([done("a")])
    exchange.collect(0.0)
    exchange.add(ask("a"))
    exchange.take(1)
    assert exchange.take_aborted() == []


@pytest.mark.parametrize(("max_results", "max_samples"), [(2, 100), (100, 2)])
def test_put_waits_until_there_is_room_for_results(max_results: int, max_samples: int) -> None:
    exchange = Exchange(max_results, max_samples)
    for name in "abcde":
        exchange.add(ask(name))
    exchange.take(5)
    putting = threading.Thread(target=exchange.put, args=([done(name) for name in "abcde"],))
    putting.start()
    seen = []
    for expected in (["a", "b"], ["c", "d"], ["e"]):
        wait_until(lambda expected=expected: not set(expected) & set(exchange.owed))
        seen += exchange.collect(5.0) or []
    putting.join(5)
    assert [result.request_id for result in seen] == list("abcde")


def test_a_result_larger_than_the_room_comes_alone() -> None:
    exchange = Exchange(10, 5)
    exchange.add(ask("a"))
    exchange.take(1)
    exchange.put([done("a", 50)])
    assert names(exchange.collect(0.0)) == [("a", "stop")]


def test_closing_ends_every_wait() -> None:
    exchange = Exchange(1)
    exchange.add(ask("a"))
    exchange.add(ask("b"))
    exchange.take(2)
    exchange.put([done("a")])
    waits = [
        threading.Thread(target=exchange.put, args=([done("b")],)),
        threading.Thread(target=exchange.wait_for_work, args=(None,)),
    ]
    for thread in waits:
        thread.start()
    exchange.close()
    for thread in waits:
        thread.join(5)
        assert not thread.is_alive()
    started_s = time.monotonic()
    assert names(exchange.collect(30.0)) == [("a", "stop"), ("b", "stop")]
    for call in (lambda: exchange.collect(30.0), lambda: exchange.add(ask("c"))):
        with pytest.raises(EngineError, match="closed"):
            call()
    assert time.monotonic() - started_s < 5


def test_the_caller_can_be_woken_without_a_result() -> None:
    exchange = Exchange(1)
    exchange.wake_caller()
    assert exchange.collect(30.0) == []
    assert exchange.collect(0.0) is None
