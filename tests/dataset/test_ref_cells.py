"""Reference cells: every usual way to name a recording, and the ways that are refused."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tts_batch.dataset.audio import content_key
from tts_batch.dataset.ref_cells import RefCells
from tts_batch.errors import RowError
from tts_batch.records import RefAudio


def parse(cell: Any, folder: Path | None = Path("/table"), root: Path | None = None, **options: Any) -> RefAudio | None:
    return RefCells(folder, root, **options).parse(cell)


def reason_of(cell: Any, **options: Any) -> str:
    with pytest.raises(RowError) as caught:
        parse(cell, **options)
    assert caught.value.message.endswith((".", "…"))
    return caught.value.reason


@pytest.mark.parametrize("cell", [None, "", "  ", [], (), {}, {"bytes": None, "path": None}, [None], b"", {"path": ""}])
def test_empty_cells_are_no_reference(cell: Any) -> None:
    assert parse(cell) is None


@pytest.mark.parametrize(
    ("cell", "path"),
    [
        ("a.wav", "/table/a.wav"),
        ("clips/my voice%20.wav", "/table/clips/my voice%20.wav"),
        ("/abs/a.wav", "/abs/a.wav"),
        (" a.wav\n", "/table/a.wav"),
        ("file:///x/my%20voice.wav", "/x/my voice.wav"),
        ("file://localhost/x/a.wav", "/x/a.wav"),
        ("FILE:/x/a.wav", "/x/a.wav"),
        ("take: 2.wav", "/table/take: 2.wav"),
        ({"bytes": None, "path": "a.wav"}, "/table/a.wav"),
        (["a.wav"], "/table/a.wav"),
    ],
)
def test_b63_paths_and_file_uris(cell: Any, path: str) -> None:
    ref = parse(cell)
    assert ref is not None and (ref.path, ref.data, ref.array) == (path, None, None)


def test_b63_home_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    ref = parse("~/a.wav")
    assert ref is not None and (ref.path, ref.label) == ("/home/someone/a.wav", "~/a.wav")


@given(st.binary(min_size=1, max_size=60))
def test_b63_data_uris(data: bytes) -> None:
    from urllib.parse import quote

    encoded = base64.b64encode(data).decode()
    for uri in (f"data:audio/wav;base64,{encoded}", f"data:,{quote(data)}", f"data:;BASE64,{quote(encoded)}"):
        ref = parse(uri)
        assert ref is not None and ref.data == data and ref.label.startswith("sha256:")


@pytest.mark.parametrize("uri", ["data:audio/wav;base64", "data:;base64,###", "data:,", "data:,ü€"])
def test_b63_data_uris_that_are_broken(uri: str) -> None:
    assert reason_of(uri) == "ref_unreadable"


@pytest.mark.parametrize("num_bytes", [300, 97_000])
def test_b63_bare_base64_is_a_path_that_is_not_there(num_bytes: int) -> None:
    ref = parse(base64.b64encode(bytes(num_bytes)).decode())
    assert ref is not None and ref.path is not None
    assert len(ref.label) < 1000
    with pytest.raises(RowError, match="write it as data:audio/wav;base64,") as caught:
        content_key(ref)
    assert caught.value.reason == "ref_missing"
    assert len(caught.value.message) < 400


@pytest.mark.parametrize("cell", [["x" * 9000], 9 * [9**99], {"x" * 9000: 1}], ids=["path", "list", "struct"])
def test_messages_stay_short(cell: Any, tmp_path: Path) -> None:
    with pytest.raises(RowError) as caught:
        parse(cell, root=tmp_path)
    assert len(caught.value.message) < 500


@pytest.mark.parametrize(
    "url", ["http://host/a.wav", "https://host/a.wav", "s3://bucket/a.wav", "HTTPS://host/" + "x" * 999]
)
def test_b64_urls_are_refused_with_a_sentence(url: str) -> None:
    assert reason_of(url) == "url_refused"
    assert reason_of({"path": url}) == "url_refused"


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        (["a.wav", "b.wav"], "bad_row"),
        (5, "ref_unreadable"),
        ({"wav": "a"}, "ref_unreadable"),
        ({"bytes": "text"}, "ref_unreadable"),
        (np.zeros(9), "ref_unreadable"),
        ({"array": [0.1]}, "ref_unreadable"),
        ({"array": [0.1], "sampling_rate": float("nan")}, "ref_unreadable"),
        ({"array": [[0.1], [0.1, 0.2]], "sampling_rate": 8000}, "ref_unreadable"),
        ({"array": ["x"], "sampling_rate": 8000}, "ref_unreadable"),
        ({"path": 5}, "ref_unreadable"),
        ("file://elsewhere/a.wav", "ref_missing"),
        ("a\ud800.wav", "ref_missing"),
        ("a\0.wav", "ref_missing"),
    ],
    ids=repr,
)
def test_cells_that_name_no_recording(cell: Any, reason: str) -> None:
    assert reason_of(cell) == reason


def test_a_remote_table_has_no_folder() -> None:
    assert reason_of("a.wav", folder=None) == "ref_missing"


def test_audio_root_is_the_only_folder(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    for folder in (root, outside):
        (folder / "a.wav").write_bytes(b"x")
    (root / "link.wav").symlink_to(outside / "a.wav")
    (root / "loop").symlink_to(outside)
    inside = parse("a.wav", folder=root, root=root)
    assert inside is not None and inside.path == str(root / "a.wav")
    from_root = parse("a.wav", folder=tmp_path, root=root)
    assert from_root is not None and from_root.path == str(root / "a.wav")
    for cell in (
        "../outside/a.wav",
        str(outside / "a.wav"),
        "link.wav",
        "loop/a.wav",
        f"file://{outside}/a.wav",
        "~/x",
    ):
        assert reason_of(cell, folder=root, root=root) == "ref_forbidden"
    assert reason_of("a.wav", folder=outside, root=root) == "ref_forbidden"


def test_b21_labels_are_only_labels(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"voice one")
    (tmp_path / "b").write_bytes(b"voice one")
    cells: list[Any] = ["a", "b", b"voice one", {"bytes": b"voice one", "path": "c"}]
    keys = {content_key(ref) for cell in cells if (ref := parse(cell, folder=tmp_path))}
    assert len(keys) == 1
    (tmp_path / "b").write_bytes(b"voice two")
    ref = parse("b", folder=tmp_path)
    assert ref is not None and content_key(ref) not in keys


def test_array_keys_tell_apart_what_sounds_different() -> None:
    arrays = [np.zeros(4, np.int16), np.zeros(4, np.float32), np.zeros(5, np.int16), np.zeros((2, 2), np.int16)]
    cells = [{"array": a, "sampling_rate": 8000} for a in arrays] + [{"array": arrays[0], "sampling_rate": 16_000}]
    assert len({content_key(ref) for cell in cells if (ref := parse(cell))}) == 5
