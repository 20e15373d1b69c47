"""The user's cache folder, in which tiny checkpoints, encoded voices and fetched references are kept across runs."""

from __future__ import annotations

import os
from pathlib import Path

from tts_batch.errors import CannotContinueError

VARIABLE = "TTS_BATCH_CACHE"
"""The environment variable that names the folder."""


def find_cache_folder() -> Path | None:
    """Return TTS_BATCH_CACHE itself, or tts-batch/ under XDG_CACHE_HOME or ~/.cache; it need not exist.

    None: neither variable is set, and the user has no home.
    """
    if named := os.environ.get(VARIABLE):
        return Path(named)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "tts-batch"
    try:
        return Path.home() / ".cache" / "tts-batch"
    except RuntimeError:  # no HOME, and no entry for this user
        return None


def cache_folder() -> Path:
    """Return the cache folder, and make it if it does not exist.

    Raises CannotContinueError when there is none and none can be made.
    """
    folder = find_cache_folder()
    if folder is None:
        raise CannotContinueError(
            f"There is no cache folder, because this user has no home: name one that can be written with {VARIABLE}."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unusable(folder, error) from error
    return folder


def unusable(folder: Path, error: OSError) -> CannotContinueError:
    """Return the error to raise when `folder` cannot be made or written."""
    return CannotContinueError(
        f"The cache folder {folder} cannot be used ({error.strerror or error}): name one that can be written with "
        f"{VARIABLE}."
    )
