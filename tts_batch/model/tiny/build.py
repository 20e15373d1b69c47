"""build_tiny writes a tiny checkpoint into the cache, once for all processes."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

VERSION = 6  # part of the cache key: raise it whenever the content of a checkpoint changes

NAMES = ("tiny", "tiny-random")
SEEDS = {
    ("base", "1b7"): 80,
    ("custom_voice", "1b7"): 1,
    ("voice_design", "1b7"): 2,
    ("custom_voice", "0b6"): 3,
    ("base", "0b6"): 4,
}
"""The released kinds and sizes, with the seed of each one's random weights."""

VOICE = files("tts_batch.model.tiny") / "trained"
"""The trained `tiny`, written by recipes/tiny_voice/pack.py: the configuration, and the weights of all kinds once, the
codec's in float16. Of a tensor that ends in equal rows only the first of those is stored: the official layout's tables
have a row for each of 2,048 codes, most of which this voice never uses."""
WEIGHTS = ("voice.safetensors", "codec.safetensors")
_DATA = files("tts_batch.model.tiny") / "data"
_COPIED = (
    "generation_config.json",
    "preprocessor_config.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "speech_tokenizer/config.json",
    "speech_tokenizer/configuration.json",
    "speech_tokenizer/preprocessor_config.json",
)


def build_tiny(name: str, kind: str, size: str = "1b7", cache_dir: Path | None = None) -> Path:
    """The folder of a tiny checkpoint in the official layout, built on the first call and cached in `cache_dir`.

    `name` is one of NAMES; `kind` base, custom_voice or voice_design; `size` "1b7" or "0b6" (structure only: all are
    small, and the trained `tiny` is "1b7"); `cache_dir` None: the folder that TTS_BATCH_CACHE names, or
    ~/.cache/tts-batch. Several processes may call it at the same time: each builds in a temporary folder, and the
    first rename wins. Raises ValueError for a combination that was never released, OSError when the folder cannot be
    written.
    """
    if name not in NAMES:
        raise ValueError(f"no tiny checkpoint is called {name!r}: {', '.join(NAMES)}")
    if (kind, size) not in SEEDS:
        raise ValueError(f"no {size} {kind} model was released: {', '.join(f'{s} {k}' for k, s in SEEDS)}")
    if name == "tiny" and size != "1b7":
        raise ValueError(f"tiny was trained as 1b7 alone, not as {size}")
    folder = (cache_dir or _default_cache_dir()) / f"{name}-{kind}-{size}-v{VERSION}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            write_checkpoint(temporary, name, kind, size)
            temporary.chmod(0o755)  # mkdtemp's 0700 would keep a shared cache from others
            temporary.rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process built the same content first
                raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _default_cache_dir() -> Path:
    return Path(os.environ.get("TTS_BATCH_CACHE") or "~/.cache/tts-batch").expanduser()


def write_checkpoint(folder: Path, name: str, kind: str, size: str) -> None:
    """Write the whole checkpoint into an existing folder."""
    (folder / "speech_tokenizer").mkdir()
    trained = name == "tiny"
    for file in _COPIED:
        source = VOICE if trained and (VOICE / file).is_file() else _DATA
        (folder / file).write_bytes((source / file).read_bytes())
    config = _config(VOICE if trained else _DATA, kind, size)
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    _write_weights(folder, config, trained=trained)


def _write_weights(folder: Path, config: dict[str, Any], *, trained: bool) -> None:
    """Write both safetensors files, with a value for every tensor of the networks that the configurations describe."""
    import torch
    from safetensors.torch import load, save_file

    from tts_batch.model.config import CodecConfig, ModelConfig
    from tts_batch.model.qwen3_tts import Qwen3TTS
    from tts_batch.model.tiny.values import codec_values, model_values

    codec_config = _read_json(folder / "speech_tokenizer/config.json")
    model = Qwen3TTS(ModelConfig.from_json(config), CodecConfig.from_json(codec_config))
    shapes, codec_shapes = (
        {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
        for network in (model.network, model.speech_tokenizer)
    )
    if trained:
        weights, codec = (load((VOICE / file).read_bytes()) for file in WEIGHTS)
    else:
        seed = SEEDS[config["tts_model_type"], config["tts_model_size"]]
        values = model_values(shapes, seed, config["talker_config"]["codec_eos_token_id"])
        weights = {name: torch.from_numpy(value) for name, value in values.items()}
        calibration = _read_json(_DATA / "calibration.json")
        values = codec_values(codec_config, codec_shapes, calibration)
        codec = {name: torch.from_numpy(value) for name, value in values.items()}

    def write(file: str, shapes: dict[str, tuple[int, ...]], tensors: dict[str, Any], dtype: torch.dtype) -> None:
        whole = {}
        for name, (rows, *_) in shapes.items():
            tensor = tensors[name]
            whole[name] = torch.cat([tensor, tensor[-1:].expand(rows - len(tensor), *tensor.shape[1:])]).to(dtype)
        save_file(whole, folder / file, {"format": "pt"})

    write("model.safetensors", shapes, weights, torch.bfloat16)
    write("speech_tokenizer/model.safetensors", codec_shapes, codec, torch.float32)


def _config(source: Traversable, kind: str, size: str) -> dict[str, Any]:
    """config.json of one kind and size, from the template that holds the parts of all."""
    config = _read_json(source / "config.json")
    talker = config["talker_config"]
    config |= {"tts_model_type": kind, "tts_model_size": size}
    if size == "0b6":  # the small model's predictor is as wide as its talker and has no projection between them
        talker["code_predictor_config"]["hidden_size"] = talker["hidden_size"]
    if kind != "base":
        del config["speaker_encoder_config"]
    if kind != "custom_voice":
        talker |= {"spk_id": {}, "spk_is_dialect": {}}
    return config


def _read_json(file: Traversable) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content
