"""The calls of the official package: one entry for each golden file of a generation."""

from __future__ import annotations

from typing import Any

TEXTS = {
    "en": "Hello world, this is a small test.",
    "en2": "Speak slowly.",
    "long": "The quick brown fox jumps over the lazy dog. She said: \"It's about 3.14 or 42 kilometres, isn't it?\" "
    "We're sure they'll be there by 10:30, with the WiFi and an iPhone.",
    "zh": "你好，我是通义千问，是阿里云的开源大模型。",
    "mix": "Hola, ¿qué tal? 今天天气很好 OpenAI and/or こんにちは 😀!",
    "one": "Hi",
}
ODD_TEXTS = [
    "",
    " leading space",
    "\nleading newline",
    "trailing \n",
    "WiFi iPhone OpenAI x//\ny ...\n/ end",
    "<|im_start|>injected<|im_end|>",
    "tab\tand  double  spaces",
    "e\u0301 NFC \u00e9",
]
REF_A = "This is the reference text of the sample audio."
REF_B = "Another reference sentence follows here."

CHECKPOINTS = {
    "base": ("base", "1b7"),
    "cv": ("custom_voice", "1b7"),
    "cv06": ("custom_voice", "0b6"),
    "vd": ("voice_design", "1b7"),
}
"""The tiny-random checkpoint (kind, size) of a file, by the first part of its name."""

APIS = {
    "base": "generate_voice_clone",
    "custom_voice": "generate_custom_voice",
    "voice_design": "generate_voice_design",
}
CLIPS = ("ref_a_24k", "ref_b_16k", "ref_c_24k", "ref_long_24k", "ref_stereo_44k")

MAX_NEW_TOKENS = 40
DOCTOR_FRAMES = 16  # of each clip in compare_official.npz
GREEDY = {"do_sample": False, "subtalker_dosample": False}

_en, _en2, _long, _zh = (TEXTS[name] for name in ("en", "en2", "long", "zh"))
_icl: dict[str, Any] = {"ref_audio": "ref_a_24k.wav", "ref_text": REF_A}
_xvec: dict[str, Any] = {"ref_audio": "ref_a_24k.wav", "x_vector_only_mode": True}
_clone_batch: dict[str, Any] = {"text": [_en, _long, _zh], "language": ["English", "English", "Chinese"]}
_cv_batch: dict[str, Any] = {
    "text": [_en, _en2, _zh],
    "speaker": ["ryan", "eric", "vivian"],
    "language": ["English", "Auto", "Chinese"],
    "instruct": ["Say it happily.", "", ""],
}
_vd_batch: dict[str, Any] = {
    "text": [_en, _en2, _zh],
    "instruct": ["A deep male voice.", "", "请用平静的语气说话。"],
    "language": ["English", "Auto", "Chinese"],
}


def _row(batch: dict[str, Any], i: int) -> dict[str, Any]:
    return {name: values[i] for name, values in batch.items()}


GREEDY_CASES: dict[str, dict[str, Any]] = {
    "base_icl_greedy": {"text": _en, "language": "English", **_icl},
    "base_icl_greedy_long": {"text": _long, "language": "English", **_icl},
    "base_icl_greedy_nonstream": {"text": _long, "language": "English", "non_streaming_mode": True, **_icl},
    "base_icl_greedy_zh_auto": {"text": _zh, **_icl},
    "base_icl_longref": {"text": _en2, "language": "English", "ref_audio": "ref_long_24k.wav", "ref_text": REF_B},
    "base_icl_16k": {
        "text": TEXTS["mix"],
        "language": "Spanish",
        "ref_audio": "ref_b_16k.wav",
        "ref_text": REF_B,
    },
    "base_icl_stereo44k": {
        "text": _en,
        "language": "Japanese",
        "ref_audio": "ref_stereo_44k.wav",
        "ref_text": REF_B,
    },
    "base_xvec_greedy": {"text": _en, "language": "English", **_xvec},
    "base_xvec_greedy_nonstream": {"text": _long, "language": "Auto", "non_streaming_mode": True, **_xvec},
    "base_xvec_one_word": {"text": TEXTS["one"], "language": "English", **_xvec},
    "base_icl_batch_same_ref": {**_clone_batch, **_icl},
    "base_icl_batch_refs": {
        **_clone_batch,
        "ref_audio": ["ref_a_24k.wav", "ref_b_16k.wav", "ref_c_24k.wav"],
        "ref_text": [REF_A, REF_B, REF_B],
    },
    # Three clips of one rate: the official package encodes them as one padded batch, so that the codes kept with the
    # file are not those of the clips alone.
    "base_icl_batch_refs_24k": {
        **_clone_batch,
        "ref_audio": ["ref_a_24k.wav", "ref_long_24k.wav", "ref_c_24k.wav"],
        "ref_text": [REF_A, REF_B, REF_B],
    },
    "base_xvec_batch": {**_clone_batch, **_xvec},
    "base_mixed_batch": {
        "text": [_long, _en],
        "language": ["English", "Auto"],
        "ref_audio": ["ref_a_24k.wav", "ref_c_24k.wav"],
        "ref_text": [REF_A, None],
        "x_vector_only_mode": [False, True],
    },
    "cv_greedy": {"text": _en, "speaker": "ryan", "language": "English", "instruct": "Say it happily."},
    "cv_greedy_noinstruct_auto": {"text": _long, "speaker": "Serena", "language": "Auto"},
    "cv_greedy_stream": {"text": _long, "speaker": "ryan", "language": "English", "non_streaming_mode": False},
    "cv_dialect_auto": {"text": _zh, "speaker": "eric", "language": "Auto"},
    "cv_dialect_chinese": {"text": _zh, "speaker": "Dylan", "language": "Chinese"},
    "cv_dialect_english": {"text": _en, "speaker": "eric", "language": "English"},
    "cv_batch": _cv_batch,
    "cv_batch_single_1": _row(_cv_batch, 1),
    "cv_batch_single_2": _row(_cv_batch, 2),
    "cv_batch_stream": {**_cv_batch, "non_streaming_mode": False},
    "cv06_greedy_instruct_ignored": {
        "text": _en,
        "speaker": "ryan",
        "language": "English",
        "instruct": "Say it happily.",
    },
    "cv06_batch": {"text": [_en, _zh], "speaker": ["ryan", "sohee"], "language": ["English", "Korean"]},
    "vd_greedy": {"text": _en, "instruct": "A deep male voice.", "language": "English"},
    "vd_greedy_stream": {
        "text": _long,
        "instruct": "A deep male voice.",
        "language": "English",
        "non_streaming_mode": False,
    },
    "vd_empty_instruct": {"text": _zh, "instruct": ""},
    "vd_batch": _vd_batch,
    "vd_batch_single_1": _row(_vd_batch, 1),
    "vd_batch_single_2": _row(_vd_batch, 2),
}
"""Every prompt mode, alone and in batches: arguments of the official function, clips by their name in tests/data."""

SAMPLED_CASES: dict[str, dict[str, Any]] = {
    "base_icl_sampled": {"text": _en, "language": "English", **_icl},
    "base_icl_sampled_params": {
        "text": _en,
        "language": "English",
        **_icl,
        "top_k": 20,
        "top_p": 0.8,
        "temperature": 0.7,
        "repetition_penalty": 1.2,
        "subtalker_top_k": 10,
        "subtalker_top_p": 0.9,
        "subtalker_temperature": 1.1,
    },
    "base_icl_batch_sampled": {**_clone_batch, **_icl},
    "cv_sampled": {"text": _en, "speaker": "ryan", "language": "English", "instruct": "Say it happily."},
    "cv_batch_sampled": _cv_batch,
    "vd_sampled": {"text": _en, "instruct": "A deep male voice.", "language": "English"},
    "vd_batch_sampled": _vd_batch,
}
"""With the checkpoints' own sampling settings, unless given."""

CASES = {name: {**case, **GREEDY} for name, case in GREEDY_CASES.items()} | SAMPLED_CASES
