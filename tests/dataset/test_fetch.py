"""References that are URLs: fetched once, kept by content, and failing alone."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import soundfile

from tests.dataset.support import ReadRows, reasons
from tests.dataset.web_server import WebServer, download_here, drip, web_server
from tts_batch.config import JobConfig
from tts_batch.dataset import fetch
from tts_batch.dataset.audio import content_key, load_reference
from tts_batch.dataset.fetch import FRESH_S, Fetcher
from tts_batch.dataset.rows import read_rows
from tts_batch.errors import RowError
from tts_batch.records import Row


@pytest.fixture
def server(tone: Callable[..., Any]) -> Iterator[WebServer]:
    """Serves two recordings, /a.wav and /b.wav."""
    with web_server() as server:
        for name, seconds in (("a", 2.0), ("b", 3.0)):
            sound = io.BytesIO()
            soundfile.write(sound, tone(seconds), 24_000, format="WAV")
            server.files[f"/{name}.wav"] = sound.getvalue()
        yield server


@pytest.fixture
def fetcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fetcher:
    monkeypatch.setattr(fetch, "WAITS_S", (0.01, 0.01))
    monkeypatch.setattr(fetch, "MAX_FETCH_S", 2.0)
    return Fetcher(tmp_path / "kept", download_here)


def read(table: Path, fetcher: Fetcher) -> list[Row]:
    return list(read_rows(JobConfig(data=(str(table),), out=table.parent / "out"), fetcher=fetcher))


def test_b64_a_thousand_rows_ask_once_and_bad_urls_fail_only_their_rows(
    server: WebServer, fetcher: Fetcher, tmp_path: Path
) -> None:
    server.answers["/stalls"] = drip
    urls = [server.url("/a.wav")] * 1000
    urls[300:303] = [server.url("/gone"), server.url("/stalls"), "http://127.0.0.2/a.wav"]
    urls[700:703] = urls[300:303]
    table = tmp_path / "t.tsv"
    table.write_text("text\tref_audio\n" + "".join(f"hello\t{url}\n" for url in urls))
    rows = read(table, fetcher)
    bad = ["ref_unreadable", "ref_unreadable", "url_refused"]
    assert reasons(rows) == [None] * 300 + bad + [None] * 397 + bad + [None] * 297
    assert server.asked == {"/a.wav": 1, "/gone": 1, "/stalls": 1}
    good = rows[0].ref_audio
    assert good is not None and good.label == urls[0]
    assert load_reference(good).size == 48_000
    assert [row.id for row in read(table, fetcher)] == [row.id for row in rows]
    assert sum(server.asked.values()) == 3


def test_a_bug_in_fetching_is_raised_and_not_waited_for(tmp_path: Path) -> None:
    def broken(url: str, target: BinaryIO, deadline: float) -> None:
        raise ZeroDivisionError

    fetcher = Fetcher(tmp_path / "kept", broken)
    with pytest.raises(ZeroDivisionError):
        fetcher.path("http://example.com/a.wav")


def test_a_damaged_note_is_none(server: WebServer, fetcher: Fetcher, tmp_path: Path) -> None:
    kept = fetcher.path(server.url("/a.wav"))
    (note,) = kept.parent.glob("url-*")
    note.write_bytes(b"\xff")
    assert Fetcher(tmp_path / "kept", download_here).path(server.url("/a.wav")) == kept
    assert server.asked == {"/a.wav": 2}


def test_rows_are_read_ahead_so_that_urls_are_fetched_together(
    server: WebServer, fetcher: Fetcher, tmp_path: Path
) -> None:
    def slowly(wfile: Any) -> None:
        time.sleep(0.2)
        wfile.write(b"HTTP/1.1 200 OK\r\n\r\n" + server.files["/a.wav"])

    server.answers |= {f"/{i}.wav": slowly for i in range(16)}
    table = tmp_path / "t.tsv"
    table.write_text("text\tref_audio\n" + "".join(f"hello\t{server.url(f'/{i}.wav')}\n" for i in range(16)))
    started = time.monotonic()
    assert reasons(read(table, fetcher)) == [None] * 16
    assert time.monotonic() - started < 16 * 0.2 * 0.75


def test_files_are_kept_under_their_content(server: WebServer, fetcher: Fetcher, tmp_path: Path) -> None:
    server.files["/same.wav"] = server.files["/a.wav"]
    one, same, other = (fetcher.path(server.url(f"/{name}.wav")) for name in ("a", "same", "b"))
    assert one == same != other
    assert one.parent == tmp_path / "kept" and one.read_bytes() == server.files["/a.wav"]
    assert not [path for path in one.parent.iterdir() if path.name.startswith(".")]


def test_the_next_run_takes_what_is_kept_for_a_day(server: WebServer, fetcher: Fetcher, tmp_path: Path) -> None:
    url = server.url("/a.wav")
    first = fetcher.path(url)
    assert Fetcher(tmp_path / "kept", download_here).path(url) == first
    assert server.asked["/a.wav"] == 1
    _make_older(tmp_path / "kept")
    server.files["/a.wav"] = server.files["/b.wav"]
    assert Fetcher(tmp_path / "kept", download_here).path(url) != first
    assert server.asked["/a.wav"] == 2


def test_an_older_file_serves_where_the_server_is_silent(server: WebServer, fetcher: Fetcher, tmp_path: Path) -> None:
    url = server.url("/a.wav")
    first = fetcher.path(url)
    _make_older(tmp_path / "kept")
    del server.files["/a.wav"]
    assert Fetcher(tmp_path / "kept", download_here).path(url) == first


def _make_older(kept: Path) -> None:
    for note in kept.glob("url-*"):
        os.utime(note, (time.time() - FRESH_S - 1,) * 2)


def test_what_is_passing_is_tried_again(server: WebServer, fetcher: Fetcher) -> None:
    server.busy |= {"/a.wav": 2, "/b.wav": 3}
    assert fetcher.path(server.url("/a.wav")).is_file()
    with pytest.raises(RowError, match="503") as caught:
        fetcher.path(server.url("/b.wav"))
    assert caught.value.reason == "ref_unreadable"
    assert server.asked == {"/a.wav": 3, "/b.wav": 3}


def test_urls_in_structs_and_lists(server: WebServer, fetcher: Fetcher, read: ReadRows) -> None:
    url = server.url("/a.wav")
    (read.folder / "t.jsonl").write_text(
        f'{{"text": "a", "ref_audio": {{"path": "{url}"}}}}\n{{"text": "a", "ref_audio": ["{url}"]}}\n'
    )
    rows = list(read_rows(JobConfig(data=(str(read.folder / "t.jsonl"),), out=read.folder / "out"), fetcher=fetcher))
    assert reasons(rows) == [None, None]
    keys = {content_key(row.ref_audio) for row in rows if row.ref_audio}
    assert len(keys) == 1 and server.asked["/a.wav"] == 1


def test_urls_are_refused_unless_they_are_allowed(server: WebServer, read: ReadRows) -> None:
    (row,) = read.written("t.tsv", f"text\tref_audio\nhello\t{server.url('/a.wav')}\n")
    assert row.failure is not None and row.failure.reason == "url_refused" and "--allow-url" in row.failure.message
    assert not server.asked


def test_a_url_may_name_a_part_of_its_recording(server: WebServer, fetcher: Fetcher, tmp_path: Path) -> None:
    table = tmp_path / "t.tsv"
    table.write_text("text\tref_audio\n" + "".join(f"a\t{server.url('/b.wav')}{part}\n" for part in ("", "#t=1,2")))
    whole, part = (load_reference(row.ref_audio) for row in read(table, fetcher) if row.ref_audio)
    assert (whole.size, part.size) == (72_000, 24_000) and server.asked == {"/b.wav": 1}


def test_a_plan_without_urls_loads_no_http_client() -> None:
    code = "import sys, tts_batch.plan.planner; sys.exit(bool({'httpx', 'httpcore'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
