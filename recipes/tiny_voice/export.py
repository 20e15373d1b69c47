"""Converts training states to checkpoints in the official layout.

    python export.py FOLDER --out CHECKPOINTS [--codec FOLDER/unjudged]

FOLDER holds what a piece of training left; CHECKPOINTS receives base/, custom_voice/ and voice_design/. One talker
serves all three: they differ in their configuration, and in the speaker encoder that only Base has. --codec takes the
codec from another folder, such as the piece's unjudged/.

CHECKPOINTS/stored/ is what tts_batch keeps of them: voice.safetensors in bfloat16 and codec.safetensors in float16,
under the official names. Rows at a tensor's end that are all alike are stored once; whoever reads them repeats the
last row until the tensor has its shape.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import torch
import torch.nn.functional as F
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
GENERATION = {"temperature": 0.5, "subtalker_dosample": False, "repetition_penalty": 1.0}
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
    network = {name: value.half().contiguous() for name, value in codec.settle().state_dict().items()}
    voice = widen({name: value.bfloat16() for name, value in load_pieces(args.folder, "talker").items()})
    for kind in KINDS:
        folder = args.out / kind
        (folder / "speech_tokenizer").mkdir(parents=True, exist_ok=True)
        write_settings(folder, kind)
        wanted = {k: v for k, v in voice.items() if kind == "base" or not k.startswith("speaker_encoder.")}
        save_file(wanted, folder / "model.safetensors", {"format": "pt"})
        state = {name: value.float() for name, value in network.items()}
        save_file(state, folder / "speech_tokenizer" / "model.safetensors", {"format": "pt"})
    stored = args.out / "stored"
    stored.mkdir(exist_ok=True)
    save_file(shorten(voice), stored / "voice.safetensors")
    save_file(shorten(network), stored / "codec.safetensors")


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


def shorten(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every tensor, with equal last rows stored once."""
    short = {}
    for name, value in state.items():
        differs = (value != value[-1]).flatten(1).any(1) if value.dim() > 1 else value != value[-1]
        kept = int(differs.nonzero().max()) + 2 if differs.any() else 1
        short[name] = value[:kept].contiguous()
    return short


@torch.no_grad()
def _directions(state: dict[str, Tensor]) -> Iterator[Tensor]:
    """For each codebook that says nothing, where the code predictor's states point when it is that one's turn.

    A head with this as its first row, and nothing else, always chooses code 0.
    """
    torch.manual_seed(0)
    config = model_config("base")
    talker = Talker(config.talker, config.code_predictor)
    talker.load_state_dict({n.removeprefix("talker."): v for n, v in state.items() if n.startswith("talker.")})
    predictor = talker.code_predictor
    # What the talker makes of random texts and frames, and then the codes that the predictor itself would choose.
    noise = talker.project_text(torch.randint(config.talker.text_vocab_size, (16, 64)))
    noise = noise + talker.embed_frames(torch.randint(NUM_CODES, (16 * 64, 16))).view_as(noise)
    heard = run_stack(talker.stack, noise, None).flatten(0, 1)
    inputs = [heard, talker.embed_code0(_drawn(talker.codec_head(heard)))]
    for level in range(1, config.code_predictor.num_code_groups):
        hidden = run_stack(predictor.stack, predictor.project(torch.stack(inputs, 1)), None)[:, -1]
        if level >= NUM_LEVELS:
            states, direction = F.normalize(hidden, dim=-1), hidden.mean(0)
            for _ in range(200):  # turned towards those states that it fits least
                direction = F.normalize(direction, dim=0)
                direction = direction + states[(states @ direction).topk(20, largest=False).indices].mean(0)
            yield 100 * F.normalize(direction, dim=0)
        codes = _drawn(predictor.logits(level, hidden)) if level < NUM_LEVELS else torch.zeros(len(hidden)).long()
        inputs.append(predictor.model.codec_embedding[level - 1](codes))


def _drawn(logits: Tensor) -> Tensor:
    return logits[:, :NUM_CODES].softmax(-1).multinomial(1)[:, 0]


if __name__ == "__main__":
    main()
