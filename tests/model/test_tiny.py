"""The tiny checkpoints: recorded values, and one cached build for any number of processes."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from tts_batch.model.tiny import NAMES, build_tiny
from tts_batch.model.tiny.build import SEEDS, VOICE, WEIGHTS

# The first digits of each file's checksum. Those of tiny-random were taken from the checkpoints on which the official
# package made tests/golden. A change here needs a new VERSION in build.py, or caches keep the old content.
CHECKSUMS = {
    ("tiny-random", "base", "1b7"): ("f9b4d3d1a3246366", "b32b98a0151c61cf"),
    ("tiny-random", "custom_voice", "1b7"): ("6496ea839da385b7", "b32b98a0151c61cf"),
    ("tiny-random", "voice_design", "1b7"): ("551a3c7b6e174294", "b32b98a0151c61cf"),
    ("tiny-random", "custom_voice", "0b6"): ("a614fe994e50150f", "b32b98a0151c61cf"),
    ("tiny-random", "base", "0b6"): ("15a00d3e4c18d446", "b32b98a0151c61cf"),
    ("tiny", "base", "1b7"): ("28ebedf3f5e841b9", "03b7917611622cea"),
    ("tiny", "custom_voice", "1b7"): ("8b55440572e63575", "03b7917611622cea"),
    ("tiny", "voice_design", "1b7"): ("8b55440572e63575", "03b7917611622cea"),
}
NUM_BUILDERS = 8
MAX_PACKAGED_BYTES = 30e6
BUILD_ON_REQUEST = """
import sys
from tts_batch.model.tiny import build_tiny
print("ready", flush=True)
sys.stdin.readline()
print(build_tiny("tiny-random", "base"))
"""


def checksum(path: Path) -> str:
    """Of names, types, shapes and values, however the file orders them."""
    digest = hashlib.sha256()
    with safe_open(path, "pt") as file:
        for name in sorted(file.keys()):
            tensor = file.get_tensor(name)
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
            digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def checksums(folder: Path) -> tuple[str, str]:
    return checksum(folder / "model.safetensors"), checksum(folder / "speech_tokenizer" / "model.safetensors")


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TTS_BATCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_every_released_kind_and_size_is_there() -> None:
    assert NAMES == ("tiny", "tiny-random")
    trained = {("tiny", kind, "1b7") for kind in ("base", "custom_voice", "voice_design")}
    assert set(CHECKSUMS) == trained | {("tiny-random", *released) for released in SEEDS}


@pytest.mark.parametrize("checkpoint", CHECKSUMS, ids=" ".join)
def test_the_recorded_values(empty_cache: Path, checkpoint: tuple[str, str, str]) -> None:
    folder = build_tiny(*checkpoint)
    assert checksums(folder) == CHECKSUMS[checkpoint]
    assert folder.parent == empty_cache
    assert list(empty_cache.iterdir()) == [folder]


def test_the_trained_weights_are_a_small_part_of_the_package() -> None:
    assert sum(len((VOICE / name).read_bytes()) for name in WEIGHTS) < MAX_PACKAGED_BYTES


def test_what_is_cached_is_not_built_again(empty_cache: Path) -> None:
    folder = build_tiny("tiny-random", "voice_design")
    before = (folder / "model.safetensors").stat()
    assert build_tiny("tiny-random", "voice_design") == folder
    assert (folder / "model.safetensors").stat() == before


def test_builders_in_a_race_end_with_one_whole_checkpoint(empty_cache: Path) -> None:
    builders = [
        subprocess.Popen(
            [sys.executable, "-c", BUILD_ON_REQUEST], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(NUM_BUILDERS)
    ]
    for builder in builders:
        assert builder.stdout is not None
        assert builder.stdout.readline() == "ready\n"
    for builder in builders:
        assert builder.stdin is not None
        builder.stdin.write("go\n")
        builder.stdin.flush()
    folders = {Path(builder.communicate()[0].strip()) for builder in builders}
    assert [builder.returncode for builder in builders] == [0] * NUM_BUILDERS
    assert list(empty_cache.iterdir()) == list(folders)
    assert checksums(folders.pop()) == CHECKSUMS["tiny-random", "base", "1b7"]


def test_a_build_that_fails_leaves_nothing(empty_cache: Path) -> None:
    empty_cache.mkdir()
    (empty_cache / "tiny-random-base-1b7-v6").write_text("in the way")
    with pytest.raises(OSError, match="tiny-random-base-1b7-v6"):
        build_tiny("tiny-random", "base")
    assert [path.name for path in empty_cache.iterdir()] == ["tiny-random-base-1b7-v6"]


@pytest.mark.parametrize(
    ("name", "kind", "size", "named"),
    [
        ("tiny-random", "voice_design", "0b6", "0b6 voice_design"),
        ("tiny-random", "music", "1b7", "music"),
        ("tiny", "base", "0b6", "1b7 alone"),
        ("small", "base", "1b7", "small"),
    ],
)
def test_what_was_never_released_is_refused(name: str, kind: str, size: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        build_tiny(name, kind, size)


def test_a_cache_can_be_named(empty_cache: Path, tmp_path: Path) -> None:
    assert build_tiny("tiny-random", "base", cache_dir=tmp_path / "other").parent == tmp_path / "other"
    assert not empty_cache.exists()


def test_building_needs_no_torch() -> None:
    program = "import sys, tts_batch.model.tiny; print('torch' in sys.modules, 'transformers' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "False False\n"
