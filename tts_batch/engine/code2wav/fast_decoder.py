"""The codec's decoder rebuilt for throughput: channels last, weights packed once, elementwise work fused into products.

It computes what `CodecDecoder` computes. What differs is rounding: linear maps that follow one another are multiplied
out, and a Snake reads the float32 sum before it rather than its rounded copy.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_batch.engine.kernels.activation import silu_mul
from tts_batch.engine.kernels.causal_conv import Conv, Ends, Snake, causal_conv
from tts_batch.engine.kernels.depthwise_norm import depthwise_norm
from tts_batch.engine.kernels.norm import rms_norm
from tts_batch.engine.kernels.window_attention import window_attention
from tts_batch.model.layers import rotary
from tts_batch.model.speech_tokenizer import decoder as exact
from tts_batch.model.speech_tokenizer.pieces import CONTEXT_FRAMES, PIECE_FRAMES

MAX_FRAMES = CONTEXT_FRAMES + PIECE_FRAMES  # no piece is longer
CONV_CONTEXT = 1  # frames before the wanted ones that come out with them: the late convolutions look back 0.7
_LOOK_BACK = 11  # frames more that the early ones see: with the late ones they look back 10.4
_SAMPLES_PER_ROW = 16  # the last convolution makes this many samples at once, for an efficient product


class FastCodecDecoder(nn.Module):
    """A Decode: codes int [B, 16, T] to speech float32 [B, T * 1920]; kernels on CUDA, their twins elsewhere.

    Made from a decoder, on its device, with weights of its own in `dtype`. Nothing in `forward` waits for the device
    or depends on values, so that it can be captured in a CUDA graph.
    """

    @torch.no_grad()
    def __init__(
        self,
        decoder: exact.CodecDecoder,
        dtype: torch.dtype = torch.bfloat16,
        conv_context: int | None = CONV_CONTEXT,
    ) -> None:
        super().__init__()
        self.conv_context = conv_context
        self.samples_per_frame = decoder.samples_per_frame
        self.codebook_size = decoder.codebook_size
        self.table = _latent_table(decoder.quantizer).to(dtype)
        self.transformer = _Transformer(decoder, dtype)
        self.upsample = [_Upsample(*stage, dtype) for stage in decoder.upsample]
        first, *blocks, last_snake, last = decoder.decoder
        self.first = _conv(first.conv, dtype)
        self.snakes = [_snake(block.block[0]) for block in blocks] + [_snake(last_snake)]
        self.blocks = [_Block(block, snake, dtype) for block, snake in zip(blocks, self.snakes[1:], strict=True)]
        self.last = _waveform_conv(last.conv, dtype)

    @torch.no_grad()
    def forward(
        self,
        codes: Tensor,
        first: Tensor | None = None,
        num_frames: int | None = None,
        ends: Tensor | None = None,
    ) -> Tensor:
        """Codes [B, 16, T] to audio float32 [B, T * 1920]. Raises ValueError for more than MAX_FRAMES frames.

        With `first` int64 [B] only frames [first, first + num_frames) of each row come out, num_frames * 1920 samples:
        exact from CONV_CONTEXT frames after `first`, or from 0 on. What runs past the row's end is not to be used.
        Where rows are padded, `ends` int64 [B] gives the number of frames of each: the convolutions skip the rest.
        Ids outside the codebook, which padding may hold, are clamped into it.
        """
        batch, levels, length = codes.shape
        if length > MAX_FRAMES:
            raise ValueError(f"{length} frames in one piece; there are tables for {MAX_FRAMES}: cut it up")
        shelves = torch.arange(levels, device=codes.device)[:, None] * self.codebook_size
        latent = F.embedding(codes.clamp(0, self.codebook_size - 1) + shelves, self.table).sum(1)
        x = self.transformer(latent)
        early, late = None, ends
        if first is not None and num_frames is not None:
            early = (first - _LOOK_BACK).clamp(min=0)
            x = _cut(x, early, min(num_frames + _LOOK_BACK, length))
            length = num_frames
            if ends is not None:
                ends, late = ends - early, ends - first
        num_seen = x.shape[1]
        seen, wanted = _ends(ends, num_seen), _ends(late, length)
        for stage in self.upsample:
            x = stage(x)
        _, snaked = causal_conv(x, self.first, snake=self.snakes[0], keep=False, ends=seen)
        snaked = self.blocks[0](snaked, seen)
        if first is not None and early is not None:  # the blocks behind, which cost most, are spared the look back
            per_frame = snaked.shape[1] // num_seen
            snaked = _cut(snaked, (first - early) * per_frame, length * per_frame)
        for block in self.blocks[1:]:
            snaked = block(snaked, wanted)
        rows = snaked.view(batch, -1, _SAMPLES_PER_ROW * snaked.shape[2])
        audio, _ = causal_conv(rows, self.last, ends=wanted, out_dtype=torch.float32)
        return audio.view(batch, length * self.samples_per_frame).clamp_(-1, 1)


class _Transformer:
    """Latents [B, T, codebook_dim] through pre_conv and pre_transformer: [B, T, latent_dim]."""

    def __init__(self, decoder: exact.CodecDecoder, dtype: torch.dtype) -> None:
        source = decoder.pre_transformer
        self.config = config = source.config
        positions = torch.arange(MAX_FRAMES, device=source.norm.weight.device)
        angles = rotary(positions, config.head_dim, config.rope_theta, torch.float32)
        self.cos, self.sin = (table[:, : config.head_dim // 2].contiguous() for table in angles)
        self.entry = _then(_conv(decoder.pre_conv.conv), source.input_proj, dtype)
        self.layers = [_TransformerLayer(layer, dtype) for layer in source.layers]
        self.norm = source.norm.weight.to(dtype)
        self.exit = source.output_proj.weight.to(dtype)
        self.exit_bias = source.output_proj.bias.to(dtype)

    def __call__(self, latent: Tensor) -> Tensor:
        config = self.config
        batch, length, _ = latent.shape
        cos, sin = self.cos[:length], self.sin[:length]
        x = causal_conv(latent, self.entry)[0].flatten(0, 1)
        for layer in self.layers:
            qkv = rms_norm(x, layer.attention_norm, config.rms_norm_eps) @ layer.qkv
            qkv = qkv.view(batch, length, 3, -1, config.head_dim)
            x.addmm_(window_attention(qkv, cos, sin, config.sliding_window).flatten(0, 1), layer.attention_out)
            gate_up = rms_norm(x, layer.mlp_norm, config.rms_norm_eps) @ layer.gate_up
            x.addmm_(silu_mul(gate_up), layer.mlp_out)
        return F.linear(rms_norm(x, self.norm, config.rms_norm_eps), self.exit, self.exit_bias).view(batch, length, -1)


class _TransformerLayer:
    """One layer's matrices [in, out], with the layer scales multiplied in."""

    def __init__(self, layer: nn.Module, dtype: torch.dtype) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        self.attention_norm = layer.input_layernorm.weight.to(dtype)
        self.qkv = _matrix(torch.cat([projection.weight for projection in projections]), dtype)
        self.attention_out = _matrix(_scaled(layer.self_attn_layer_scale.scale, attention.o_proj.weight), dtype)
        self.mlp_norm = layer.post_attention_layernorm.weight.to(dtype)
        self.gate_up = _matrix(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]), dtype)
        self.mlp_out = _matrix(_scaled(layer.mlp_layer_scale.scale, mlp.down_proj.weight), dtype)


class _Upsample:
    """A transposed convolution and a ConvNeXt block: [B, T, C_in] -> [B, T * stride, C]."""

    def __init__(self, up: nn.Module, block: exact.ConvNeXtBlock, dtype: torch.dtype) -> None:
        self.up = _transposed(up.conv, dtype)
        self.width = up.conv.out_channels
        self.depthwise = block.dwconv.conv.weight[:, 0].T.float().contiguous()
        self.depthwise_bias = block.dwconv.conv.bias.float()
        self.eps = block.norm.eps
        widen, narrow = block.pwconv1, block.pwconv2
        # The norm's weight and bias move into the product after it, gamma into the one before it.
        self.widen = (widen.weight.float() * block.norm.weight.float()).to(dtype)
        self.widen_bias = (widen.bias.float() + widen.weight.float() @ block.norm.bias.float()).to(dtype)
        gamma = block.gamma.float()
        self.narrow = Conv(_matrix(_scaled(gamma, narrow.weight), dtype), gamma * narrow.bias.float())

    def __call__(self, x: Tensor) -> Tensor:
        x = causal_conv(x, self.up)[0].view(x.shape[0], -1, self.width)
        y = depthwise_norm(x, self.depthwise, self.depthwise_bias, self.eps)
        return causal_conv(F.gelu(F.linear(y, self.widen, self.widen_bias)), self.narrow, residual=x)[0]


class _Block:
    """Transposed convolution and residual units: snaked [B, T, C_in] -> snaked [B, T * stride, C]."""

    def __init__(self, block: exact.UpsampleBlock, last_snake: Snake, dtype: torch.dtype) -> None:
        _, up, *units = block.block
        self.up = _transposed(up.conv, dtype)
        self.width = up.conv.out_channels
        snakes = [_snake(unit.act1) for unit in units]
        stride = up.conv.stride[0]
        self.enter = Snake(snakes[0].frequency.repeat(stride), snakes[0].height.repeat(stride))
        self.units = [
            _Unit(_conv(unit.conv1.conv, dtype), _snake(unit.act2), _conv(unit.conv2.conv, dtype), after)
            for unit, after in zip(units, [*snakes[1:], last_snake], strict=True)
        ]

    def __call__(self, snaked: Tensor, ends: Ends | None) -> Tensor:
        batch = snaked.shape[0]
        x, snaked = causal_conv(snaked, self.up, snake=self.enter, ends=ends)
        x, snaked = x.view(batch, -1, self.width), snaked.view(batch, -1, self.width)
        for unit in self.units:
            is_last = unit is self.units[-1]
            _, middle = causal_conv(snaked, unit.wide, snake=unit.inner, keep=False, ends=ends)
            del snaked  # these are the largest tensors of all: each is given back once it has been read
            x, snaked = causal_conv(middle, unit.point, residual=x, snake=unit.outer, keep=not is_last, ends=ends)
            del middle
        return snaked


@dataclass(frozen=True, slots=True)
class _Unit:
    wide: Conv
    inner: Snake
    point: Conv
    outer: Snake


def _ends(frames: Tensor | None, padded_to: int) -> Ends | None:
    return None if frames is None else Ends(frames.int(), padded_to)


def _cut(x: Tensor, first: Tensor, length: int) -> Tensor:
    """Rows [first, first + length) of each sequence in [B, T, C]; its last one instead of those beyond."""
    at = (first[:, None] + torch.arange(length, device=x.device)).clamp(max=x.shape[1] - 1)
    starts = torch.arange(0, x.shape[0] * x.shape[1], x.shape[1], device=x.device)
    return F.embedding(starts[:, None] + at, x.flatten(0, 1))


def _latent_table(quantizer: nn.Module) -> Tensor:
    """Every codebook's vectors, already projected: float32 [levels * codebook_size, latent width]."""
    return torch.cat(
        [
            level["_codebook"].vectors.float() @ group.output_proj.weight[..., 0].T.float()
            for group in (quantizer.rvq_first, quantizer.rvq_rest)
            for level in group.vq["layers"]
        ]
    )


def _conv(conv: nn.Conv1d, dtype: torch.dtype = torch.float32) -> Conv:
    """Weight [C_out, C_in, taps] to [taps * C_in, C_out]."""
    weight = conv.weight.float().permute(2, 1, 0).flatten(0, 1)
    return Conv(weight.to(dtype).contiguous(), conv.bias.float(), conv.kernel_size[0], conv.dilation[0])


def _transposed(conv: nn.ConvTranspose1d, dtype: torch.dtype) -> Conv:
    """A transposed convolution is one over fewer rows that gives `stride` outputs each, side by side in channels."""
    stride = conv.stride[0]
    taps = conv.kernel_size[0] // stride
    phases = conv.weight.float().unflatten(2, (taps, stride)).flip(2)  # [C_in, C_out, taps, stride], oldest tap first
    weight = phases.permute(2, 0, 3, 1).flatten(2).flatten(0, 1)
    return Conv(weight.to(dtype).contiguous(), conv.bias.float().repeat(stride), taps)


def _waveform_conv(conv: nn.Conv1d, dtype: torch.dtype) -> Conv:
    """The convolution to one channel, over rows of 16 samples: a row needs itself and the tail of the one before."""
    size = _SAMPLES_PER_ROW
    taps = conv.kernel_size[0]
    weight = torch.zeros(2 * size, conv.in_channels, size, device=conv.weight.device)
    for sample in range(size):
        oldest = size + sample - (taps - 1)
        weight[oldest : oldest + taps, :, sample] = conv.weight[0].float().T
    return Conv(weight.flatten(0, 1).to(dtype), conv.bias.float().repeat(size), taps=2)


def _then(conv: Conv, linear: nn.Linear, dtype: torch.dtype) -> Conv:
    """A convolution followed by a linear map, as one convolution."""
    matrix = linear.weight.float().T
    return Conv((conv.weight @ matrix).to(dtype), conv.bias @ matrix + linear.bias.float(), conv.taps, conv.dilation)


def _snake(snake: exact.Snake) -> Snake:
    return Snake(2 * snake.alpha.float().exp(), 0.5 / (snake.beta.float().exp() + 1e-9))


def _scaled(scale: Tensor, weight: Tensor) -> Tensor:
    return scale.float()[:, None] * weight.float()


def _matrix(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """[out, in] to a contiguous [in, out]."""
    return weight.T.to(dtype).contiguous()
