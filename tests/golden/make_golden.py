"""Run the official qwen_tts package on the tiny-random checkpoints and write tests/golden/*.npz.

Run it from the repository's root, in an environment of its own: Python >= 3.11 with qwen-tts 0.1.1 (installed with
--no-deps), torch 2.13.0 (CPU), transformers 4.57.3, accelerate 1.12.0, librosa 0.11.0, soundfile, einops, onnxruntime
and sox, and torchaudio or an empty stand-in for it:

    OMP_NUM_THREADS=1 /path/to/official/bin/python -m tests.golden.make_golden

It takes about two minutes and needs no network. Nothing inside the official classes is changed: their `generate`
methods are wrapped to also return logits and scores, and to keep what they were given. README.md lists the arrays.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import librosa
import numpy as np
import torch
import transformers
from qwen_tts import Qwen3TTSModel
from qwen_tts.core.models import modeling_qwen3_tts
from torch import Tensor, nn

from tests.golden.cases import APIS, CASES, CHECKPOINTS, CLIPS, DOCTOR_FRAMES, MAX_NEW_TOKENS, ODD_TEXTS, TEXTS
from tts_batch.doctor.compare_official import PROBES, generate_official
from tts_batch.model.tiny import build_tiny

Arrays = dict[str, np.ndarray]

FOLDER = Path(__file__).parent
DATA = FOLDER.parent / "data"
SEED = 1234

WAVE_STEP = (
    17  # of a generation's wave every 17th sample is kept: prime to the codec's rates, so that no phase is left out
)
LOGIT_STEPS = 2  # of the talker, kept of every row: from the prompt alone, and after one frame
SCORE_STEPS = 6  # kept of sampled rows
DETAILED = {  # one of each checkpoint and kind of reference keeps more logits, and a frame of the code predictor's
    "base_icl_greedy": 12,
    "base_xvec_greedy": 4,
    "cv_greedy": 4,
    "cv06_greedy_instruct_ignored": 4,
    "vd_greedy": 4,
    "base_icl_sampled_params": SCORE_STEPS,
}
REAL_TEXT_VOCABULARY = 151_643  # entries of the released vocabulary before its control tokens


def to_numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().numpy() if tensor.is_floating_point() else tensor.numpy()


class Recorder:
    """Calls an official API function and collects what its parts saw and said."""

    def __init__(self, model: Qwen3TTSModel) -> None:
        self.model = model
        self.saw: dict[str, Any] = {}
        inner = model.model
        self._wrap(inner, self._keep_request)
        self._wrap(inner.talker, self._keep_talker, output_logits=True, output_scores=True)
        self._wrap(inner.talker.code_predictor, self._keep_predictor, output_logits=True, output_scores=True)

    def _wrap(self, module: nn.Module, keep: Callable[[dict[str, Any], Any], None], **more: Any) -> None:
        generate = module.generate

        def wrapped(**given: Any) -> Any:
            result = generate(**given, **more)
            keep(given, result)
            return result

        module.generate = wrapped

    def _keep_request(self, given: dict[str, Any], result: Any) -> None:
        self.saw |= {"request": given, "codes": result[0]}

    def _keep_talker(self, given: dict[str, Any], result: Any) -> None:
        self.saw |= {"prompt": given, "talker": result}

    def _keep_predictor(self, given: dict[str, Any], result: Any) -> None:
        self.saw.setdefault("frames", []).append(result)

    def record(self, name: str, api: str, arguments: dict[str, Any]) -> Arrays:
        self.saw = {}
        torch.manual_seed(SEED)
        called = {**arguments, "max_new_tokens": MAX_NEW_TOKENS}
        if "ref_audio" in called:
            called["ref_audio"] = _map(lambda clip: str(DATA / clip), called["ref_audio"])
        waves, rate = getattr(self.model, api)(**called)
        assert rate == 24_000
        meta = {"fn": api, "kwargs": {**arguments, "max_new_tokens": MAX_NEW_TOKENS}, "seed": SEED}
        arrays = self._prompt() | self._decoding(name, greedy=arguments.get("do_sample") is False)
        for i, wave in enumerate(waves):
            arrays |= self._row(i, wave)
        return arrays | {"meta": np.array(json.dumps(meta, ensure_ascii=False))}

    def _prompt(self) -> Arrays:
        names = ("inputs_embeds", "attention_mask", "trailing_text_hidden", "tts_pad_embed")
        return {name: to_numpy(self.saw["prompt"][name]) for name in names}

    def _decoding(self, name: str, *, greedy: bool) -> Arrays:
        talker, frames = self.saw["talker"], self.saw["frames"]
        scores, logits = torch.stack(talker.scores), torch.stack(talker.logits)
        predictor_logits = torch.stack([torch.stack(frame.logits).float() for frame in frames])
        predictor_scores = torch.stack([torch.stack(frame.scores).float() for frame in frames])
        arrays = {"talker_sequences": to_numpy(talker.sequences)}
        steps = DETAILED.get(name, LOGIT_STEPS)
        if greedy:
            arrays["talker_margin"] = _margin(scores)
            arrays["predictor_margin"] = _margin(predictor_logits)
        else:
            steps = SCORE_STEPS
            arrays["talker_scores"] = to_numpy(scores[:steps])
        arrays["talker_logits"] = to_numpy(logits[:steps])
        if name in DETAILED:
            arrays["predictor_logits_first"] = to_numpy(predictor_logits[:1])
            if not greedy:
                arrays["predictor_scores_first"] = to_numpy(predictor_scores[:1])
        return arrays

    def _row(self, i: int, wave: np.ndarray) -> Arrays:
        arrays = {
            f"codes_{i}": to_numpy(self.saw["codes"][i]),
            f"wav_{i}_samples": np.array(len(wave)),
            f"wav_{i}_from_end": np.asarray(wave, np.float32)[::-WAVE_STEP].copy(),
        }
        request = self.saw["request"]
        for name in ("input_ids", "instruct_ids", "ref_ids"):
            ids = request.get(name)
            if ids is not None and ids[i] is not None:
                arrays[f"{name}_{i}"] = to_numpy(ids[i])
        if clone := request.get("voice_clone_prompt"):
            arrays[f"ref_spk_embedding_{i}"] = to_numpy(clone["ref_spk_embedding"][i])
            if clone["ref_code"] is not None and clone["ref_code"][i] is not None:
                arrays[f"ref_code_{i}"] = to_numpy(clone["ref_code"][i])
        return arrays


def _map(function: Callable[[str], str], value: str | Sequence[str]) -> str | list[str]:
    return function(value) if isinstance(value, str) else [function(item) for item in value]


def _margin(scores: Tensor) -> np.ndarray:
    top = scores.topk(2, dim=-1).values
    return to_numpy(top[..., 0] - top[..., 1])


def speaker_encoder(model: Qwen3TTSModel) -> Arrays:
    """Mel and x-vector of every clip; the samples of those that had to be resampled."""
    arrays = {}
    for clip in CLIPS:
        audio, rate = model._load_audio_to_np(str(DATA / f"{clip}.wav"))
        if rate != 24_000:
            audio = librosa.resample(y=audio.astype(np.float32), orig_sr=rate, target_sr=24_000)
            arrays[f"{clip}_wav24k"] = audio
        if clip != "ref_long_24k":  # 0.6 MB that would tell nothing new
            arrays[f"{clip}_mel"] = to_numpy(
                modeling_qwen3_tts.mel_spectrogram(
                    torch.from_numpy(audio)[None],
                    n_fft=1024,
                    num_mels=128,
                    sampling_rate=24_000,
                    hop_size=256,
                    win_size=1024,
                    fmin=0,
                    fmax=12_000,
                )
            )
        arrays[f"{clip}_xvector"] = to_numpy(model.model.extract_speaker_embedding(audio=audio, sr=24_000))
    return arrays


@torch.no_grad()
def codec_encode(model: Qwen3TTSModel) -> Arrays:
    """Codes, latents and the gap between the nearest and second nearest vector, of every clip alone."""
    codec, arrays, latents = model.model.speech_tokenizer, {}, []
    hook = codec.model.encoder.downsample.register_forward_hook(lambda module, given, out: latents.append(out))
    for clip in CLIPS:
        audio, rate = model._load_audio_to_np(str(DATA / f"{clip}.wav"))
        arrays[f"{clip}_codes"] = to_numpy(codec.encode(audio, sr=rate).audio_codes[0])
        arrays[f"{clip}_latent"] = to_numpy(latents[-1])
        arrays[f"{clip}_margin"] = _encoder_margin(codec.model.encoder.quantizer, latents[-1])
    audio, _ = model._load_audio_to_np(str(DATA / "ref_a_24k.wav"))
    for samples in (1, 959, 1919, 1920, 1921, 3840, 3841):
        arrays[f"len{samples}_codes"] = to_numpy(codec.encode(audio[:samples], sr=24_000).audio_codes[0])
    hook.remove()
    return arrays


def _encoder_margin(quantizer: nn.Module, latent: Tensor) -> np.ndarray:
    gaps = []
    for part, levels in ((quantizer.semantic_residual_vector_quantizer, 1),
                         (quantizer.acoustic_residual_vector_quantizer, 15)):  # fmt: skip
        residual = part.input_proj(latent)
        for layer in part.layers[:levels]:
            distances = torch.cdist(residual.transpose(1, 2)[0], layer.codebook.embed)
            nearest = distances.topk(2, largest=False).values
            gaps.append(nearest[:, 1] - nearest[:, 0])
            residual = residual - layer.decode(layer.encode(residual))
    return to_numpy(torch.stack(gaps, dim=1))


def codec_decode(model: Qwen3TTSModel) -> Arrays:
    """Waves of random codes. 330 frames cross a seam; of their wave every 17th sample is kept."""
    codec, arrays = model.model.speech_tokenizer, {}
    generator = np.random.Generator(np.random.PCG64(77))
    codes = {
        frames: torch.from_numpy(generator.integers(0, 2048, (frames, 16))) for frames in (1, 2, 7, 25, 40, 80, 330)
    }
    codes[7][3] = 7  # the codebook row that was never used
    for frames, given in codes.items():
        (wave,), _ = codec.decode([{"audio_codes": given}])
        arrays[f"codes_{frames}"] = given.numpy()
        arrays[f"wav_{frames}"] = wave[:: WAVE_STEP if frames == 330 else 1]
    return arrays


def tokenization(model: Qwen3TTSModel) -> tuple[Arrays, Arrays]:
    """Ids under the three templates: of the texts used here, one array each, and of texts.txt, end to end.

    `tiny`: the checkpoints' own tokenizer. `bigvocab`: the same merges in a vocabulary of the released size, where the
    package and transformers 4.57.3 exchange the split pattern when they load from a folder.
    """
    templates = {
        "assistant": model._build_assistant_text,
        "ref": model._build_ref_text,
        "instruct": model._build_instruct_text,
    }
    with tempfile.TemporaryDirectory() as folder:
        _write_big_vocabulary(Path(folder))
        big = transformers.AutoProcessor.from_pretrained(folder, fix_mistral_regex=True)
    used = [*TEXTS.values(), *ODD_TEXTS]
    more = (FOLDER / "texts.txt").read_text(encoding="utf-8").splitlines()
    arrays: Arrays = {"texts": np.array(used)}
    many: Arrays = {"texts": np.array(more)}
    plain: dict[str, list[list[str]]] = {}
    for name, processor in (("tiny", model.processor), ("bigvocab", big)):

        def ids(text: str, processor: Any = processor) -> np.ndarray:
            return processor(text=text, return_tensors="pt", padding=True)["input_ids"].numpy()  # [1, n]

        for template, build in templates.items():
            arrays |= {f"{name}_{template}_{i}": ids(build(text)) for i, text in enumerate(used)}
            rows = [ids(build(text))[0] for text in more]
            many[f"{name}_{template}_ids"] = np.concatenate(rows)
            many[f"{name}_{template}_ends"] = np.cumsum([len(row) for row in rows])
        tokens = processor.tokenizer.convert_ids_to_tokens
        plain[name] = [tokens(ids(model._build_assistant_text(text))[0]) for text in used + more]
    differs = np.array([tiny != big for tiny, big in zip(*plain.values(), strict=True)])
    arrays["bigvocab_differs"], many["bigvocab_differs"] = differs[: len(used)], differs[len(used) :]
    return arrays, many


def _write_big_vocabulary(folder: Path) -> None:
    source = build_tiny("tiny-random", "base")
    for name in ("merges.txt", "config.json", "preprocessor_config.json"):
        (folder / name).write_bytes((source / name).read_bytes())
    vocabulary = json.loads((source / "vocab.json").read_text(encoding="utf-8"))
    shift = REAL_TEXT_VOCABULARY - len(vocabulary)
    unreachable = {f"\u0120\u0120#{i}": i for i in range(len(vocabulary), REAL_TEXT_VOCABULARY)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary | unreachable), encoding="utf-8")
    tokenizer = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    added = tokenizer["added_tokens_decoder"]
    tokenizer["added_tokens_decoder"] = {str(int(index) + shift): token for index, token in added.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer), encoding="utf-8")


def doctor_answers(kind: str) -> Arrays:
    """What `doctor --compare-official` hears from the package, of a few frames, so that it can be tested without."""
    model = build_tiny("tiny-random", kind)
    return generate_official(model, PROBES[kind], "cpu", "float32", sys.executable, DOCTOR_FRAMES)


def save(name: str, arrays: Arrays) -> None:
    np.savez_compressed(FOLDER / f"{name}.npz", **arrays)


def main() -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    for prefix, (kind, size) in CHECKPOINTS.items():
        model = Qwen3TTSModel.from_pretrained(str(build_tiny("tiny-random", kind, size)), dtype=torch.float32)
        if prefix == "base":
            save("speaker_encoder", speaker_encoder(model))
            save("codec_encode", codec_encode(model))
            save("codec_decode", codec_decode(model))
            for name, arrays in zip(("tokenization", "tokenization_more"), tokenization(model), strict=True):
                save(name, arrays)
        if prefix == "cv":
            save("compare_official", doctor_answers(kind))
        recorder = Recorder(model)
        for name, arguments in CASES.items():
            if name.split("_")[0] == prefix:
                save(name, recorder.record(name, APIS[kind], arguments))
                print(name, flush=True)
    print(sum(file.stat().st_size for file in FOLDER.glob("*.npz")), "bytes")


if __name__ == "__main__":
    main()
