"""Where the cache is, and what is said when there cannot be one."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from tts_batch.cache import cache_folder, find_cache_folder
from tts_batch.errors import CannotContinueError


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("TTS_BATCH_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_where_it_is(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare.setenv("HOME", str(tmp_path))
    assert find_cache_folder() == tmp_path / ".cache" / "tts-batch"
    bare.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert find_cache_folder() == tmp_path / "xdg" / "tts-batch"
    bare.setenv("TTS_BATCH_CACHE", str(tmp_path / "ours"))
    assert find_cache_folder() == tmp_path / "ours"
    assert not (tmp_path / "ours").exists()
    assert cache_folder() == tmp_path / "ours"
    assert (tmp_path / "ours").is_dir()


def test_a_user_without_a_home_is_told_which_variable_to_set(bare: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    bare.setattr(pwd, "getpwuid", unknown)
    assert find_cache_folder() is None
    with pytest.raises(CannotContinueError, match=r"no home: .* with TTS_BATCH_CACHE"):
        cache_folder()


def test_a_folder_that_cannot_be_made_is_named(bare: pytest.MonkeyPatch) -> None:
    bare.setenv("HOME", os.devnull)
    with pytest.raises(CannotContinueError, match=r"/dev/null/\.cache/tts-batch .*Not a directory.*TTS_BATCH_CACHE"):
        cache_folder()
