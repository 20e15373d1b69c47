"""Assembles an engine's stages from a loaded model: the runner, the decoder, and their sizes."""

from __future__ import annotations

import logging
from copy import deepcopy
from typing import TYPE_CHECKING

import torch

from tts_batch.engine.code2wav import chunked
from tts_batch.engine.code2wav.chunked import ChunkedCode2Wav
from tts_batch.engine.code2wav.decode_pool import DecodePool, PoolLimits
from tts_batch.engine.code2wav.decoder import Decode, ExactDecoder
from tts_batch.engine.code2wav.fast_decoder import CONV_CONTEXT, FastCodecDecoder
from tts_batch.engine.code2wav.graphs import MAX_FRAMES, Code2WavGraphs
from tts_batch.engine.code2wav.utterance import UtteranceCode2Wav
from tts_batch.engine.compute_loop import Stages
from tts_batch.engine.cuda_graphs import CudaGraphs
from tts_batch.engine.devices import Platform
from tts_batch.engine.errors import EngineConfigError
from tts_batch.engine.kernels.backend import kernels_allowed
from tts_batch.engine.loops import LoopLimits
from tts_batch.engine.meter import Meter
from tts_batch.engine.prepare import Preparer
from tts_batch.engine.profiles import Profile
from tts_batch.engine.request import EngineConfig
from tts_batch.engine.runner import Runner
from tts_batch.engine.v1.runner import LockstepRunner
from tts_batch.engine.v2.runner import PAGE_SIZE, ContinuousRunner, RunnerSettings

if TYPE_CHECKING:
    from tts_batch.model.qwen3_tts import Qwen3TTS
    from tts_batch.model.speech_tokenizer.decoder import CodecDecoder

logger = logging.getLogger(__name__)

CPU_STALL_FACTOR = 20  # one step of the released models can take minutes on a CPU


def assemble(model: Qwen3TTS, platform: Platform, profile: Profile, config: EngineConfig, preparer: Preparer) -> Stages:
    """The stages of an engine, ready to run: kernels compiled, graphs captured."""
    device = platform.device
    if platform.split_device is not None:
        _move_decoder(model, platform.split_device)  # before free memory is measured
    loop_limits = LoopLimits(profile.repeated_frames, profile.few_codes_frames)
    meter = Meter()
    runner: Runner
    if platform.runner == "v2":
        runner = ContinuousRunner(model, _settings(model, profile, config, loop_limits), meter)
        with kernels_allowed(not config.eager):
            runner.warm_up()
    else:
        runner = LockstepRunner(model, profile.max_num_seqs, loop_limits, meter)
    pool = decode_pool(model, platform, profile, config, meter)
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
    )


def _settings(model: Qwen3TTS, profile: Profile, config: EngineConfig, loop_limits: LoopLimits) -> RunnerSettings:
    max_model_len = model.config.talker.max_position_embeddings
    longest = -(-max_model_len // PAGE_SIZE)
    num_pages = max(longest, profile.max_num_seqs * profile.pages_per_row)
    if model.device.type == "cuda":
        stack = model.config.talker
        page_bytes = (
            2 * stack.num_hidden_layers * stack.num_key_value_heads * stack.head_dim * PAGE_SIZE
            * model.talker.codec_head.weight.element_size()
        )  # fmt: skip
        free_bytes, _ = torch.cuda.mem_get_info(model.device)
        num_pages = min(num_pages, int(free_bytes * profile.kv_share) // page_bytes)
        if num_pages < profile.pages_per_row:
            raise EngineConfigError(
                f"{free_bytes / 2**30:.1f} GiB of free memory leave a KV cache of {num_pages * PAGE_SIZE} tokens, too "
                "few for a row; is another program on this GPU?"
            )
        logger.info("KV cache: %d pages of %d tokens, %.1f GiB", num_pages, PAGE_SIZE, num_pages * page_bytes / 2**30)
    return RunnerSettings(
        max_num_seqs=profile.max_num_seqs,
        num_pages=num_pages,
        frames_per_visit=profile.frames_per_visit,
        long_windows=profile.long_windows and config.code2wav_mode != "chunked",  # chunks are awaited
        prefill_tokens=profile.prefill_tokens,
        cuda_graph=config.cuda_graph and not config.eager,
        max_model_len=max_model_len,
        wait_timeout_s=_stall_timeout_s(model.device, config),
        loop_limits=loop_limits,
        small_batch_kernels=profile.small_batch_kernels,
    )


def _stall_timeout_s(device: torch.device, config: EngineConfig) -> float:
    return config.stall_timeout_s * (CPU_STALL_FACTOR if device.type == "cpu" else 1)


def decode_pool(
    model: Qwen3TTS, platform: Platform, profile: Profile, config: EngineConfig, meter: Meter
) -> DecodePool:
    limits = PoolLimits(profile.code2wav_frames, profile.code2wav_pieces, profile.code2wav_wait_s)
    decode = decoder_for(model.speech_tokenizer.decoder, platform, profile)
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
