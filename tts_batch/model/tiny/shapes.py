"""Names and shapes of every tensor of a Qwen3-TTS checkpoint, from its two config.json files."""

from __future__ import annotations

from typing import Any

Shapes = dict[str, tuple[int, ...]]

MEL_BINS = 128
# What the official speaker encoder takes when its config does not say: kernel and Res2Net scale.
SPEAKER_FIRST_KERNEL = 5
SPEAKER_KERNEL = 3
SPEAKER_SCALE = 8


def model_shapes(config: dict[str, Any]) -> Shapes:
    """Tensors of model.safetensors: talker, code predictor and, for a base checkpoint, speaker encoder."""
    talker = config["talker_config"]
    predictor = talker["code_predictor_config"]
    hidden, text_hidden, vocab = talker["hidden_size"], talker["text_hidden_size"], talker["vocab_size"]
    shapes: Shapes = {
        "talker.model.text_embedding.weight": (talker["text_vocab_size"], text_hidden),
        **_linear("talker.text_projection.linear_fc1", text_hidden, text_hidden),
        **_linear("talker.text_projection.linear_fc2", hidden, text_hidden),
        "talker.model.codec_embedding.weight": (vocab, hidden),
        "talker.codec_head.weight": (vocab, hidden),
        **_decoder_stack("talker.model", talker),
        **_decoder_stack("talker.code_predictor.model", predictor),
    }
    for group in range(talker["num_code_groups"] - 1):
        shapes[f"talker.code_predictor.model.codec_embedding.{group}.weight"] = (predictor["vocab_size"], hidden)
        shapes[f"talker.code_predictor.lm_head.{group}.weight"] = (predictor["vocab_size"], predictor["hidden_size"])
    if predictor["hidden_size"] != hidden:
        shapes |= _linear("talker.code_predictor.small_to_mtp_projection", predictor["hidden_size"], hidden)
    if "speaker_encoder_config" in config:
        shapes |= _speaker_encoder(config["speaker_encoder_config"])
    return shapes


def codec_shapes(config: dict[str, Any]) -> Shapes:
    """Tensors of speech_tokenizer/model.safetensors: codec encoder and decoder."""
    return _codec_encoder(config["encoder_config"]) | _codec_decoder(config["decoder_config"])


def _linear(name: str, out_features: int, in_features: int, *, bias: bool = True) -> Shapes:
    return {f"{name}.weight": (out_features, in_features)} | ({f"{name}.bias": (out_features,)} if bias else {})


def _conv(name: str, out_channels: int, in_channels: int, kernel: int) -> Shapes:
    return {f"{name}.weight": (out_channels, in_channels, kernel), f"{name}.bias": (out_channels,)}


def _transposed_conv(name: str, in_channels: int, out_channels: int, kernel: int) -> Shapes:
    return {f"{name}.weight": (in_channels, out_channels, kernel), f"{name}.bias": (out_channels,)}


def _attention(name: str, cfg: dict[str, Any]) -> Shapes:
    hidden, head_dim = cfg["hidden_size"], cfg["head_dim"]
    query, key = cfg["num_attention_heads"] * head_dim, cfg["num_key_value_heads"] * head_dim
    return {
        f"{name}.q_proj.weight": (query, hidden),
        f"{name}.k_proj.weight": (key, hidden),
        f"{name}.v_proj.weight": (key, hidden),
        f"{name}.o_proj.weight": (hidden, query),
    }


def _gated_mlp(name: str, cfg: dict[str, Any]) -> Shapes:
    hidden, inner = cfg["hidden_size"], cfg["intermediate_size"]
    return {
        f"{name}.gate_proj.weight": (inner, hidden),
        f"{name}.up_proj.weight": (inner, hidden),
        f"{name}.down_proj.weight": (hidden, inner),
    }


def _norms(name: str, size: int, *, bias: bool = False) -> Shapes:
    leaves = ("weight", "bias") if bias else ("weight",)
    return {f"{name}.{norm}.{leaf}": (size,) for norm in _LAYER_NORMS for leaf in leaves}


_LAYER_NORMS = ("input_layernorm", "post_attention_layernorm")


def _decoder_stack(name: str, cfg: dict[str, Any]) -> Shapes:
    shapes: Shapes = {f"{name}.norm.weight": (cfg["hidden_size"],)}
    for i in range(cfg["num_hidden_layers"]):
        layer = f"{name}.layers.{i}"
        shapes |= _attention(f"{layer}.self_attn", cfg) | _gated_mlp(f"{layer}.mlp", cfg)
        shapes |= _norms(layer, cfg["hidden_size"])
        shapes |= {f"{layer}.self_attn.{norm}.weight": (cfg["head_dim"],) for norm in ("q_norm", "k_norm")}
    return shapes


def _speaker_encoder(cfg: dict[str, Any]) -> Shapes:
    name = "speaker_encoder"
    channels, squeezed, attention = cfg["enc_channels"], cfg["enc_se_channels"], cfg["enc_attention_channels"]
    shapes = _conv(f"{name}.blocks.0.conv", channels[0], MEL_BINS, SPEAKER_FIRST_KERNEL)
    for i, width in enumerate(channels[1:-1], start=1):
        block, part = f"{name}.blocks.{i}", width // SPEAKER_SCALE
        shapes |= _conv(f"{block}.tdnn1.conv", width, width, 1) | _conv(f"{block}.tdnn2.conv", width, width, 1)
        for j in range(SPEAKER_SCALE - 1):
            shapes |= _conv(f"{block}.res2net_block.blocks.{j}.conv", part, part, SPEAKER_KERNEL)
        shapes |= _conv(f"{block}.se_block.conv1", squeezed, width, 1)
        shapes |= _conv(f"{block}.se_block.conv2", width, squeezed, 1)
    pooled = channels[-1]
    return (
        shapes
        | _conv(f"{name}.mfa.conv", pooled, sum(channels[1:-1]), 1)
        | _conv(f"{name}.asp.tdnn.conv", attention, 3 * pooled, 1)
        | _conv(f"{name}.asp.conv", pooled, attention, 1)
        | _conv(f"{name}.fc", cfg["enc_dim"], 2 * pooled, 1)
    )


def _codec_encoder(cfg: dict[str, Any]) -> Shapes:
    """Mimi's encoder. Its layer numbers skip the activations between the convolutions."""
    net, width = "encoder.encoder.layers", cfg["num_filters"]
    shapes = _conv(f"{net}.0.conv", width, cfg["audio_channels"], cfg["kernel_size"])
    for i, stride in enumerate(reversed(cfg["upsampling_ratios"])):
        inner = width // cfg["compress"]
        shapes |= _conv(f"{net}.{3 * i + 1}.block.1.conv", inner, width, cfg["residual_kernel_size"])
        shapes |= _conv(f"{net}.{3 * i + 1}.block.3.conv", width, inner, 1)
        shapes |= _conv(f"{net}.{3 * i + 3}.conv", 2 * width, width, 2 * stride)
        width *= 2
    hidden, last = cfg["hidden_size"], 3 * len(cfg["upsampling_ratios"]) + 2
    shapes |= _conv(f"{net}.{last}.conv", hidden, width, cfg["last_kernel_size"])
    for i in range(cfg["num_hidden_layers"]):
        layer = f"encoder.encoder_transformer.layers.{i}"
        shapes |= (
            _attention(f"{layer}.self_attn", cfg) | _norms(layer, hidden, bias=True) | _layer_scales(layer, hidden)
        )
        shapes |= _linear(f"{layer}.mlp.fc1", cfg["intermediate_size"], hidden, bias=False)
        shapes |= _linear(f"{layer}.mlp.fc2", hidden, cfg["intermediate_size"], bias=False)
    shapes["encoder.downsample.conv.weight"] = (hidden, hidden, 4)
    semantic = cfg["num_semantic_quantizers"]
    for part, levels in (("semantic", semantic), ("acoustic", cfg["num_quantizers"] - semantic)):
        quantizer = f"encoder.quantizer.{part}_residual_vector_quantizer"
        shapes |= _quantizer_projections(quantizer, cfg["codebook_dim"], hidden)
        for i in range(levels):
            codebook = f"{quantizer}.layers.{i}.codebook"
            shapes[f"{codebook}.initialized"] = (1,)
            shapes[f"{codebook}.cluster_usage"] = (cfg["codebook_size"],)
            shapes[f"{codebook}.embed_sum"] = (cfg["codebook_size"], cfg["codebook_dim"])
    return shapes


def _codec_decoder(cfg: dict[str, Any]) -> Shapes:
    shapes: Shapes = {}
    stored_dim = cfg["codebook_dim"] // 2
    for part, levels in (("rvq_first", 1), ("rvq_rest", cfg["num_quantizers"] - 1)):
        quantizer = f"decoder.quantizer.{part}"
        shapes |= _quantizer_projections(quantizer, stored_dim, cfg["codebook_dim"])
        for i in range(levels):
            codebook = f"{quantizer}.vq.layers.{i}._codebook"
            shapes[f"{codebook}.cluster_usage"] = (cfg["codebook_size"],)
            shapes[f"{codebook}.embedding_sum"] = (cfg["codebook_size"], stored_dim)
    latent, hidden, transformer = cfg["latent_dim"], cfg["hidden_size"], "decoder.pre_transformer"
    shapes |= _conv("decoder.pre_conv.conv", latent, cfg["codebook_dim"], 3)
    shapes |= _linear(f"{transformer}.input_proj", hidden, latent)
    shapes |= _linear(f"{transformer}.output_proj", latent, hidden)
    shapes[f"{transformer}.norm.weight"] = (hidden,)
    for i in range(cfg["num_hidden_layers"]):
        layer = f"{transformer}.layers.{i}"
        shapes |= _attention(f"{layer}.self_attn", cfg) | _gated_mlp(f"{layer}.mlp", cfg)
        shapes |= _norms(layer, hidden) | _layer_scales(layer, hidden)
    for i, ratio in enumerate(cfg["upsampling_ratios"]):
        block = f"decoder.upsample.{i}"
        shapes |= _transposed_conv(f"{block}.0.conv", latent, latent, ratio)
        shapes |= _conv(f"{block}.1.dwconv.conv", latent, 1, 7)
        shapes |= {f"{block}.1.norm.weight": (latent,), f"{block}.1.norm.bias": (latent,)}
        shapes |= _linear(f"{block}.1.pwconv1", 4 * latent, latent) | _linear(f"{block}.1.pwconv2", latent, 4 * latent)
        shapes[f"{block}.1.gamma"] = (latent,)
    return shapes | _waveform_stack("decoder.decoder", cfg)


def _waveform_stack(name: str, cfg: dict[str, Any]) -> Shapes:
    """The convolutions from latent to samples: each block upsamples and halves the width."""
    width, rates = cfg["decoder_dim"], cfg["upsample_rates"]
    shapes = _conv(f"{name}.0.conv", width, cfg["latent_dim"], 7)
    for i, rate in enumerate(rates, start=1):
        block = f"{name}.{i}.block"
        shapes |= _snake(f"{block}.0", width) | _transposed_conv(f"{block}.1.conv", width, width // 2, 2 * rate)
        width //= 2
        for unit in (2, 3, 4):
            shapes |= _snake(f"{block}.{unit}.act1", width) | _conv(f"{block}.{unit}.conv1.conv", width, width, 7)
            shapes |= _snake(f"{block}.{unit}.act2", width) | _conv(f"{block}.{unit}.conv2.conv", width, width, 1)
    last = len(rates) + 1
    return shapes | _snake(f"{name}.{last}", width) | _conv(f"{name}.{last + 1}.conv", 1, width, 7)


def _snake(name: str, channels: int) -> Shapes:
    return {f"{name}.alpha": (channels,), f"{name}.beta": (channels,)}


def _layer_scales(name: str, size: int) -> Shapes:
    return {f"{name}.{branch}_layer_scale.scale": (size,) for branch in ("self_attn", "mlp")}


def _quantizer_projections(name: str, inner: int, outer: int) -> Shapes:
    return {f"{name}.input_proj.weight": (inner, outer, 1), f"{name}.output_proj.weight": (outer, inner, 1)}
