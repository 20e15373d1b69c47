"""Assembles an engine's stages from a loaded model: the runner, the decoder, and their sizes."""

from __future__ import annotations

import logging
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from tts_batch.engine.choices import DEFAULT_MAX_FRAMES, KV_PAGE_TOKENS
from tts_batch.engine.code2wav import chunked
from tts_batch.engine.code2wav.chunked import ChunkedCode2Wav
from tts_batch.engine.code2wav.decode_pool import DecodePool, PoolLimits
from tts_batch.engine.code2wav.decoder import Decode, ExactDecoder
from tts_batch.engine.code2wav.fast_decoder import CONV_CONTEXT, FastCodecDecoder
from tts_batch.engine.code2wav.graphs import MAX_FRAMES, Code2WavGraphs
from tts_batch.engine.code2wav.utterance import UtteranceCode2Wav
from tts_batch.engine.compute_loop import Stages
from tts_batch.engine.cuda_graphs import CudaGraphs
from tts_batch.engine.devices import Platform, describe_card, free_bytes, has_kernels
from tts_batch.engine.kernels.backend import kernels_allowed, next_power_of_2
from tts_batch.engine.loops import LoopLimits
from tts_batch.engine.meter import Meter
from tts_batch.engine.prepare import Preparer
from tts_batch.engine.profiles import Profile
from tts_batch.engine.request import EngineConfig
from tts_batch.engine.runner import Runner
from tts_batch.engine.sizing import GIB, LEAST, Limits, Sizes, costs_of, fit, least_bytes, too_small
from tts_batch.engine.v1.runner import LockstepRunner
from tts_batch.engine.v2.packed import PackedTalker
from tts_batch.engine.v2.runner import ContinuousRunner, RunnerSettings
from tts_batch.model.qwen3_tts import Qwen3TTS

if TYPE_CHECKING:
    from tts_batch.model.config import CodecConfig, ModelConfig
    from tts_batch.model.speech_tokenizer.decoder import CodecDecoder

logger = logging.getLogger(__name__)

EXACT_CODEC_FACTOR = 2  # memory of the checkpoint's own codec decoder, per frame, over the fast one's
CPU_STALL_FACTOR = 20  # one step of the released models can take minutes on a CPU


def assemble(
    model: Qwen3TTS,
    platform: Platform,
    profile: Profile,
    config: EngineConfig,
    preparer: Preparer,
    owns_model: bool = False,
) -> Stages:
    """The stages of an engine, ready to run: kernels compiled, graphs captured.

    With `owns_model`, weights that nothing reads any more are freed; the model serves this engine only from then on.
    Raises EngineConfigError where the device's memory does not hold one row.
    """
    device = platform.device
    if platform.split_device is not None:
        _move_decoder(model, platform.split_device)  # before free memory is measured
    loop_limits = LoopLimits(profile.repeated_frames, profile.few_codes_frames)
    meter = Meter()
    reason = _why_without_kernels(model, platform)
    if reason and not config.eager:
        logger.warning("%s: torch's own operations are used instead, without CUDA graphs", reason)
        config = replace(config, eager=True)
    weights = None
    if platform.runner == "v2":
        longest = model.config.talker.max_position_embeddings
        weights = PackedTalker.pack(model.talker, longest, profile.small_batch_kernels)
        if owns_model:
            model.talker.model.text_embedding.to("meta")  # the packed table has taken its place
        if device.type == "cuda":
            torch.cuda.empty_cache()  # else what follows settles in the gaps, and keeps them from being given back
    decode = decoder_for(model.speech_tokenizer.decoder, platform, profile)
    if owns_model and isinstance(decode, FastCodecDecoder):
        model.speech_tokenizer.decoder.to("meta")
    sizes = sizes_for(model, platform, profile, config, decode) if platform.runner == "v2" else None
    if sizes is not None:
        profile = replace(
            profile,
            max_num_seqs=sizes.max_num_seqs,
            code2wav_frames=sizes.code2wav_frames,
            prefill_tokens=sizes.prefill_tokens,
        )
        preparer.limit_references(sizes.reference_s)
    runner: Runner
    if weights is not None:
        settings = _settings(model, profile, config, loop_limits, sizes)
        runner = ContinuousRunner(model, settings, meter, weights)
        with kernels_allowed(not config.eager):
            runner.warm_up()
    else:
        runner = LockstepRunner(model, profile.max_num_seqs, loop_limits, meter)
    pool = decode_pool(decode, platform, profile, config, meter)
    if device.type == "cuda":
        with kernels_allowed(not config.eager):
            pool.warm_up(device)
            preparer.warm_up()
    is_chunked = config.code2wav_mode == "chunked"
    return Stages(
        preparer=preparer,
        runner=runner,
        code2wav=ChunkedCode2Wav(pool, runner, config.on_chunk) if is_chunked else UtteranceCode2Wav(pool),
        stall_timeout_s=_stall_timeout_s(device, config),
        kernels=not config.eager,
        meter=meter,
        sizes=sizes,
    )


def _why_without_kernels(model: Qwen3TTS, platform: Platform) -> str | None:
    """Why no Triton kernel can serve the model on the device; None where they can."""
    if platform.runner != "v2" or platform.device.type != "cuda":
        return None
    if not has_kernels(platform.device):
        return f"{platform.device} is below sm80, for which Triton uses no tensor cores"
    for name, stack in (("talker", model.config.talker), ("code predictor", model.config.code_predictor)):
        if stack.head_dim != next_power_of_2(stack.head_dim):
            return f"the {name}'s head_dim {stack.head_dim} is not a power of 2, which the kernels need"
    return None


def require_memory(config: ModelConfig, codec: CodecConfig, platform: Platform, engine: EngineConfig) -> None:
    """Raise EngineConfigError, before anything is loaded, where a card cannot hold a model and one row."""
    if platform.device.type != "cuda" or platform.runner != "v2":
        return
    model = Qwen3TTS(config, codec)  # without values
    weights = sum(x.numel() for x in model.network.state_dict().values()) * platform.dtype.itemsize
    weights += sum(x.numel() for x in model.speech_tokenizer.state_dict().values()) * torch.float32.itemsize
    costs = costs_of(config.talker, codec.decoder, platform.dtype.itemsize, engine.max_frames or DEFAULT_MAX_FRAMES)
    needed, free = weights + least_bytes(costs, LEAST), free_bytes(platform.device)
    if free < needed:
        raise too_small(describe_card(platform.device), free, needed)


def sizes_for(
    model: Qwen3TTS, platform: Platform, profile: Profile, config: EngineConfig, decode: Decode
) -> Sizes | None:
    """What fits the memory that the packed weights leave free; None on a device without a limit of its own.

    Raises EngineConfigError where not one row fits.
    """
    if platform.device.type != "cuda":
        return None
    codec_is_exact = not isinstance(decode, FastCodecDecoder)
    costs = costs_of(
        model.config.talker, model.codec.decoder, platform.dtype.itemsize,
        config.max_frames or DEFAULT_MAX_FRAMES,
    )  # fmt: skip
    if codec_is_exact:
        costs = replace(costs, frame=costs.frame * EXACT_CODEC_FACTOR)
    free = free_bytes(platform.device)
    on_split = free_bytes(platform.split_device) if platform.split_device is not None else None
    limits = Limits(
        profile.max_num_seqs, _most_pages(model, profile), profile.code2wav_frames, profile.prefill_tokens,
        profile.kv_share,
    )  # fmt: skip
    sizes = fit(free, costs, limits, on_split)
    if sizes is None:
        raise too_small(f"{describe_card(platform.device)}, with the weights loaded,", free, least_bytes(costs, limits))
    logger.info(
        "%.1f GiB free beside the weights on %s: %d rows, %d KV pages of %d tokens (%.1f GiB), %d Code2Wav frames, "
        "%d prefill tokens and %.0f s of references at once",
        free / GIB, describe_card(platform.device), sizes.max_num_seqs, sizes.num_pages, KV_PAGE_TOKENS,
        sizes.num_pages * costs.page / GIB, sizes.code2wav_frames, sizes.prefill_tokens, sizes.reference_s,
    )  # fmt: skip
    return sizes


def _most_pages(model: Qwen3TTS, profile: Profile) -> int:
    longest = -(-model.config.talker.max_position_embeddings // KV_PAGE_TOKENS)
    return max(longest, profile.max_num_seqs * profile.pages_per_row)


def _settings(
    model: Qwen3TTS, profile: Profile, config: EngineConfig, loop_limits: LoopLimits, sizes: Sizes | None
) -> RunnerSettings:
    return RunnerSettings(
        max_num_seqs=profile.max_num_seqs,
        num_pages=sizes.num_pages if sizes else _most_pages(model, profile),
        frames_per_visit=profile.frames_per_visit,
        long_windows=profile.long_windows and config.code2wav_mode != "chunked",  # chunks are awaited
        prefill_tokens=profile.prefill_tokens,
        cuda_graph=config.cuda_graph and not config.eager,
        max_frames=config.max_frames or DEFAULT_MAX_FRAMES,
        max_model_len=model.config.talker.max_position_embeddings,
        wait_timeout_s=_stall_timeout_s(model.device, config),
        loop_limits=loop_limits,
        small_batch_kernels=profile.small_batch_kernels,
    )


def _stall_timeout_s(device: torch.device, config: EngineConfig) -> float:
    return config.stall_timeout_s * (CPU_STALL_FACTOR if device.type == "cpu" else 1)


def decode_pool(decode: Decode, platform: Platform, profile: Profile, config: EngineConfig, meter: Meter) -> DecodePool:
    limits = PoolLimits(profile.code2wav_frames, profile.code2wav_pieces, profile.code2wav_wait_s)
    graphs = None
    may_capture = profile.codec_graphs and config.cuda_graph and not config.eager
    if may_capture and config.code2wav_mode == "chunked" and isinstance(decode, FastCodecDecoder):
        graphs = code2wav_graphs(decode, platform.code2wav_device, limits, meter)
    own_stream = profile.codec_stream or platform.split_device is not None
    return DecodePool(decode, platform.code2wav_device, limits, own_stream, graphs, meter)


def code2wav_graphs(decode: Decode, device: torch.device, limits: PoolLimits, meter: Meter) -> Code2WavGraphs:
    """Graphs for chunks. Whole clips are launched kernel by kernel: a batch of theirs is long enough for that."""
    context = chunked.CHUNK_CONTEXT_FRAMES if decode.conv_context is None else decode.conv_context
    return Code2WavGraphs(
        decode,
        CudaGraphs(device.type == "cuda", "Code2Wav", meter.graphs["code2wav"], device),
        device,
        context + chunked.CHUNK_FRAMES,
        min(limits.max_frames, MAX_FRAMES),
        limits.max_pieces,
    )


def _move_decoder(model: Qwen3TTS, device: torch.device) -> None:
    model.speech_tokenizer.decoder.to(device)
    if device.type == "cuda":
        torch.cuda.empty_cache()


def decoder_for(exact: CodecDecoder, platform: Platform, profile: Profile) -> Decode:
    """What decodes on a platform, made from the checkpoint's own decoder."""
    if platform.runner != "v2" or platform.device.type != "cuda" or platform.dtype != torch.bfloat16:
        return ExactDecoder(exact)
    if not profile.fast_codec:
        return ExactDecoder(deepcopy(exact).to(torch.bfloat16))
    return FastCodecDecoder(exact, torch.bfloat16, CONV_CONTEXT if profile.codec_skips_context else None)
