"""A checkpoint behind a URL (s3://, gs://, hf://), brought into the user's cache."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path, PurePosixPath

from tts_batch.cache import cache_folder
from tts_batch.errors import CannotContinueError
from tts_batch.object_store import ObjectStore, check_url

_SUFFIXES = (".json", ".txt", ".safetensors")


def fetch_model(url: str) -> Path:
    """Return the folder of the cache that holds the checkpoint at a URL as it is now; what has changed is fetched.

    A folder is named after the URL and the sizes and times of its files, so that a run keeps the files that it began
    with. Raises UsageError for a URL that cannot be opened, CannotContinueError and StoreError.
    """
    store = ObjectStore(check_url(url))
    found = {name: facts for name, facts in store.find().items() if PurePosixPath(name).suffix in _SUFFIXES}
    if not found:
        raise CannotContinueError(f"{url} holds no checkpoint: there are no {', '.join(_SUFFIXES)} files.")
    version = "".join(f"{name} {facts.num_bytes} {facts.modified}\n" for name, facts in sorted(found.items()))
    folder = cache_folder() / "models" / sha256(f"{store.url}\n{version}".encode()).hexdigest()[:20]
    missing = [name for name in found if not (folder / name).exists()]
    store.map(lambda name: store.download(name, folder / name), missing)
    return folder
