"""A checkpoint of a released shape with random weights, for engines that read one from a folder."""

from __future__ import annotations

import json
import shutil
import tempfile
from importlib.resources import files
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from tts_batch.bench.engines import SHAPES, random_model
from tts_batch.engine.request import EngineConfig
from tts_batch.model.tiny import build_tiny

COPIED = (
    "generation_config.json",
    "preprocessor_config.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "speech_tokenizer/configuration.json",
    "speech_tokenizer/preprocessor_config.json",
)
"""What it shares with `tiny-random`: its text tokenizer is that one's too."""

STEADY = 8.0  # the first number of every codec embedding; no layer changes it
EOS_WEIGHT = 60.0  # of that number in the end token's logit: far above all others


def write_random_checkpoint(shape: str, folder: Path, cache_dir: Path | None = None, device: str = "auto") -> Path:
    """Write the Base checkpoint of a released shape, a key of bench.engines.SHAPES, unless it is there.

    The talker samples an end token as soon as it may, so that `--min-new-tokens N` makes clips of N frames. bfloat16,
    the codec float32; 5 GB for 1.7b.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        (temporary / "speech_tokenizer").mkdir()
        tiny = build_tiny("tiny-random", "base", cache_dir=cache_dir)
        for name in COPIED:
            shutil.copyfile(tiny / name, temporary / name)
        released = files("tts_batch.model") / "released"
        config = json.loads((released / f"{SHAPES[shape]}.json").read_text())
        (temporary / "config.json").write_text(json.dumps(config, indent=1))
        (temporary / "speech_tokenizer" / "config.json").write_text((released / "speech_tokenizer.json").read_text())
        model = random_model(shape, EngineConfig(model="", device=device, dtype="bfloat16", runner="v1"))
        weights = model.network.state_dict()
        end_when_allowed(weights, config["talker_config"]["codec_eos_token_id"])
        _save(weights, temporary / "model.safetensors")
        _save(model.speech_tokenizer.state_dict(), temporary / "speech_tokenizer" / "model.safetensors")
        temporary.chmod(0o755)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


@torch.no_grad()
def end_when_allowed(weights: dict[str, Tensor], eos_id: int) -> None:
    """Change random weights of the official names so that the end token is the talker's likeliest at every step."""
    for name, tensor in weights.items():
        if "codec_embedding" in name:
            tensor[:, 0] = STEADY if name == "talker.model.codec_embedding.weight" else 0.0
        elif name.startswith(("talker.model.layers.", "talker.text_projection.linear_fc2.")):
            if name.endswith(("o_proj.weight", "down_proj.weight", "linear_fc2.weight", "linear_fc2.bias")):
                tensor[0] = 0.0
        elif name == "talker.codec_head.weight":
            tensor[eos_id] = 0.0
            tensor[eos_id, 0] = EOS_WEIGHT


def _save(weights: dict[str, Tensor], path: Path) -> None:
    save_file({name: tensor.contiguous().cpu() for name, tensor in weights.items()}, path, metadata={"format": "pt"})
