"""Turn training states into checkpoints in the official layout.

    python export.py FOLDER --out CHECKPOINTS

FOLDER holds what a piece of training left; CHECKPOINTS receives base/, custom_voice/ and voice_design/. One talker
serves all three: they differ in their configuration, and in the speaker encoder that only Base has.
"""

from __future__ import annotations

import argparse
import json
from importlib.resources import files
from pathlib import Path

import torch
from codec import Codec
from safetensors.torch import save_file
from shapes import NUM_CODES, codec_json, model_config, model_json
from torch import Tensor
from weights import load_pieces

KINDS = ("base", "custom_voice", "voice_design")
HERE = Path(__file__).parent
# What differs from the released generation_config.json, so that a small model keeps to what it is sure of.
GENERATION = {"temperature": 0.7, "subtalker_temperature": 0.7, "repetition_penalty": 1.0}
_COPIED = ("preprocessor_config.json", "tokenizer_config.json")
_COPIED_CODEC = ("configuration.json", "preprocessor_config.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    codec = Codec()
    codec.load(args.folder)
    network = codec.settle()
    voice = widen({name: value.bfloat16() for name, value in load_pieces(args.folder, "talker").items()})
    for kind in KINDS:
        folder = args.out / kind
        (folder / "speech_tokenizer").mkdir(parents=True, exist_ok=True)
        write_settings(folder, kind)
        wanted = {k: v for k, v in voice.items() if kind == "base" or not k.startswith("speaker_encoder.")}
        save_file(wanted, folder / "model.safetensors", {"format": "pt"})
        state = {name: value.float().contiguous() for name, value in network.state_dict().items()}
        save_file(state, folder / "speech_tokenizer" / "model.safetensors", {"format": "pt"})


def write_settings(folder: Path, kind: str) -> None:
    """Write everything but the weights."""
    data = files("tts_batch.model.tiny") / "data"
    for name in _COPIED:
        (folder / name).write_bytes((data / name).read_bytes())
    for name in _COPIED_CODEC:
        (folder / "speech_tokenizer" / name).write_bytes((data / "speech_tokenizer" / name).read_bytes())
    for name in ("vocab.json", "merges.txt"):
        (folder / name).write_bytes((HERE / "tokenizer" / name).read_bytes())
    generation = json.loads((data / "generation_config.json").read_text()) | GENERATION
    for name, values in (
        ("config.json", model_json(kind)),
        ("generation_config.json", generation),
        ("speech_tokenizer/config.json", codec_json()),
    ):
        (folder / name).write_text(json.dumps(values, indent=2))


def widen(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The code predictor's tables with a row for every code: those that no codebook uses share the last one."""
    entries = model_config("base").code_predictor.vocab_size
    wide = {}
    for name, value in state.items():
        if "code_predictor" in name and ("codec_embedding" in name or "lm_head" in name):
            unused = value[NUM_CODES:].expand(entries - NUM_CODES, -1)
            value = torch.cat([value[:NUM_CODES], unused])  # noqa: PLW2901
        wide[name] = value.contiguous()
    return wide


if __name__ == "__main__":
    main()
