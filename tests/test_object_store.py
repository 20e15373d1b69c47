"""Object stores: retries, conditions, credentials that never show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tts_batch import object_store
from tts_batch.errors import UsageError
from tts_batch.object_store import ObjectStore, StoreError, check_url, redacted


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:secret@bucket/x",
        "gs://token@bucket/x",
        "https://host/t.csv?X-Amz-Credential=secret&X-Amz-Signature=secret",
        "https://host/t.csv?sig=secret",
        "https://user:secret@host/t.csv",
    ],
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError, match="holds credentials") as caught:
        check_url(url)
    assert "secret" not in str(caught.value)
    assert "token@" not in str(caught.value)


def test_ordinary_urls_stay_as_they_are() -> None:
    for url in ("s3://bucket/a@b/c", "hf://datasets/org/name@main/x.parquet", "https://host/t.csv?rev=2"):
        assert redacted(url) == check_url(url) == url


def test_objects(s3: Any, tmp_path: Path) -> None:
    store = ObjectStore(f"{s3.url}/run/")
    store.write("a/b", b"1")
    store.write("top", b"22")
    assert store.read("a/b") == b"1"
    assert {name: facts.num_bytes for name, facts in store.find().items()} == {"a/b": 1, "top": 2}
    assert store.names() == ["top"]
    with pytest.raises(FileExistsError):
        store.write("top", b"other", create=True)
    store.download("top", tmp_path / "folder" / "top")
    store.upload("again", tmp_path / "folder" / "top")
    assert store.read("again") == b"22"
    store.remove("top")
    store.remove("top")
    with pytest.raises(FileNotFoundError):
        store.read("top")
    assert ObjectStore(f"{s3.url}/nothing").find() == {}


def test_a_large_file_goes_in_parts(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "MULTIPART_BYTES", 1 << 20)
    path = tmp_path / "large"
    path.write_bytes(bytes(range(256)) * (1 << 14))
    store = ObjectStore(s3.url)
    store.upload("large", path)
    assert store.read("large") == path.read_bytes()


def test_errors_and_lost_answers_are_tried_again(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "FIRST_WAIT_S", 0.01)
    store = ObjectStore(s3.url)
    s3.faults.share = 0.4
    names = [f"n{number}" for number in range(60)]
    store.map(lambda name: store.write(name, name.encode(), create=True), names)
    assert sorted(store.find()) == sorted(names)
    assert all(store.read(name) == name.encode() for name in names)
    with pytest.raises(FileExistsError):
        store.write("n1", b"other", create=True)
    assert min(s3.faults.counts[kind] for kind in ("500", "503", "slow", "lost answer")) > 0


def test_a_store_that_stays_away_is_an_error_within_the_deadline(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "DEADLINE_S", 0.5)
    s3.faults.away = True
    with pytest.raises(StoreError, match=f"{s3.url}/x could not be read within .* s"):
        ObjectStore(s3.url).read("x")


def test_a_bucket_that_does_not_exist_is_named(s3: Any) -> None:
    with pytest.raises(StoreError, match="s3://no-such-bucket-here/x cannot be written"):
        ObjectStore("s3://no-such-bucket-here").write("x", b"")
