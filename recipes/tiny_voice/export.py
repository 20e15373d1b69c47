"""Turn training states into checkpoints in the official layout.

    python export.py FOLDER --out CHECKPOINTS [--codec FOLDER/unjudged]

FOLDER holds what a piece of training left; CHECKPOINTS receives base/, custom_voice/ and voice_design/. One talker
serves all three: they differ in their configuration, and in the speaker encoder that only Base has. --codec takes the
codec from another folder, such as the piece's unjudged/.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import torch
from codec import Codec
from safetensors.torch import save_file
from shapes import NUM_CODES, NUM_LEVELS, codec_json, model_config, model_json
from torch import Tensor
from voice import run_stack
from weights import load_pieces

from tts_batch.model.talker import Talker

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
    parser.add_argument("--codec", type=Path)
    args = parser.parse_args()
    codec = Codec()
    codec.load(args.codec or args.folder)
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
    """The code predictor's tables with a row for every code and tables for every codebook.

    Codes that no codebook uses share the last row. The codebooks from NUM_LEVELS on add nothing to any input.
    """
    config = model_config("base").code_predictor
    embedding, head = "talker.code_predictor.model.codec_embedding", "talker.code_predictor.lm_head"
    wide = {}
    for name, value in state.items():
        if name.startswith((embedding, head)):
            unused = value[NUM_CODES:].expand(config.vocab_size - NUM_CODES, -1)
            value = torch.cat([value[:NUM_CODES], unused])  # noqa: PLW2901
        wide[name] = value.contiguous()
    for level in range(NUM_LEVELS, config.num_code_groups):
        for table in (embedding, head):
            wide[f"{table}.{level - 1}.weight"] = torch.zeros_like(wide[f"{table}.0.weight"])
    for level, direction in enumerate(_directions(wide), NUM_LEVELS):
        wide[f"{head}.{level - 1}.weight"][0] = direction
    return wide


@torch.no_grad()
def _directions(state: dict[str, Tensor]) -> Iterator[Tensor]:
    """For each codebook that says nothing, where the code predictor's states point when it is that one's turn.

    A head with this as its first row, and nothing else, always chooses code 0.
    """
    config = model_config("base")
    torch.manual_seed(0)
    talker = Talker(config.talker, config.code_predictor)
    talker.load_state_dict({n.removeprefix("talker."): v for n, v in state.items() if n.startswith("talker.")})
    predictor = talker.code_predictor
    codes = torch.randint(NUM_CODES, (512, 16))
    inputs = [torch.randn(512, config.talker.hidden_size), talker.embed_code0(codes[:, 0])]
    inputs += [predictor.model.codec_embedding[g - 1](codes[:, g]) for g in range(1, 15)]
    hidden = run_stack(predictor.stack, predictor.project(torch.stack(inputs, 1)), None).mean(0)
    for mean in hidden[NUM_LEVELS:]:
        yield 100 * mean / mean.pow(2).sum()


if __name__ == "__main__":
    main()
