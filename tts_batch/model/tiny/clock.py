"""What makes `tiny-noise` stop: a few hand-written weights that raise the EOS logit with every frame spoken.

A random talker samples EOS by accident: after 2 frames or after 2,000. `tiny-noise` counts instead. Four dimensions of
the talker's residual stream are taken from the random weights, so that nothing else writes to them:

    ONE     1 in every text vector, and so at every position
    SPOKEN  1 in the embedding of a first code that the talker can sample
    START   1 in the embedding of codec_bos, which every prompt holds once
    COUNT   written by attention head 0 of layer 0

That head looks at SPOKEN and START positions alone, at all alike, and reads START: with n frames spoken it writes
1 / (1 + n) to COUNT. The EOS row of the codec head is ONE - COUNT, scaled: hopeless at first, certain in the end.

Reference frames are no spoken frames, although they enter like them: the talker says first codes 0..1023 only, and
the codec encoder hears 1024..2047 only.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tts_batch.model.tiny.values import Array

ONE, SPOKEN, START, COUNT = RESERVED = [60, 61, 62, 63]
NUM_SPOKEN_CODES = 1024

EOS_AT_LAST = 22.0  # of the EOS row, before the final norm divides by about 2
EOS_DROP = 150.0
SHARPNESS = 1.5  # of q_norm and k_norm where the counting head looks: a score of about 12 for what it counts


def add_clock(weights: dict[str, Array], config: dict[str, Any]) -> None:
    """Change the talker's float32 weights in place, as the module says."""
    talker = config["talker_config"]
    _silence_writers(weights, talker["num_hidden_layers"])
    weights["talker.text_projection.linear_fc2.bias"][ONE] = 1.0
    embedding, head = weights["talker.model.codec_embedding.weight"], weights["talker.codec_head.weight"]
    embedding[:NUM_SPOKEN_CODES, SPOKEN] = 1.0
    embedding[talker["codec_bos_id"], START] = 1.0
    head[NUM_SPOKEN_CODES : talker["code_predictor_config"]["vocab_size"]] = 0.0

    # Rows 0 .. head_dim - 1 are head 0. The last rotary pairs turn slowest: 2e-6 radians a position, no turn at all.
    layer, dim = "talker.model.layers.0", talker["head_dim"]
    counted, ignored = dim // 2 - 1, dim // 2 - 2
    query, key, value, out = (weights[f"{layer}.self_attn.{p}_proj.weight"] for p in "qkvo")
    query[:dim] = key[:dim] = value[:dim] = 0.0
    query[counted, ONE] = 1.0
    key[counted, [SPOKEN, START]] = 1.0
    key[ignored, ONE] = 0.01  # only so that the key of any other position has a norm to divide by
    value[0, START] = 1.0
    out[COUNT, 0] = 1.0
    for norm in ("q_norm", "k_norm"):
        weights[f"{layer}.self_attn.{norm}.weight"][counted] = SHARPNESS
    for norm in (f"{layer}.input_layernorm", "talker.model.norm"):
        weights[f"{norm}.weight"][RESERVED] = 1.0

    eos = head[talker["codec_eos_token_id"]]
    eos[:] = 0.0
    eos[ONE], eos[COUNT] = EOS_AT_LAST, -EOS_DROP


def keep_spoken_codes_unheard(codec: dict[str, Array]) -> None:
    """Move the first codes that the talker says far away from anything the codec encoder could hear."""
    codebook = "encoder.quantizer.semantic_residual_vector_quantizer.layers.0.codebook"
    usage = np.maximum(codec[f"{codebook}.cluster_usage"], np.float32(1e-5))[:NUM_SPOKEN_CODES, None]
    codec[f"{codebook}.embed_sum"][:NUM_SPOKEN_CODES] += np.float32(1e3) * usage


def _silence_writers(weights: dict[str, Array], num_layers: int) -> None:
    """Zero whatever would write to the reserved dimensions of the talker's residual stream."""
    rows = ["talker.text_projection.linear_fc2.weight", "talker.text_projection.linear_fc2.bias"]
    for i in range(num_layers):
        rows += [f"talker.model.layers.{i}.{p}.weight" for p in ("self_attn.o_proj", "mlp.down_proj")]
    rows += [name for name in weights if name.startswith("speaker_encoder.fc.")]
    for name in rows:
        weights[name][RESERVED] = 0.0
    for name in [name for name in weights if "codec_embedding" in name]:
        weights[name][:, RESERVED] = 0.0
