"""Training steps: their shared options, CUDA graphs, learning rate and optimizer, and the loop over time."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

Values = dict[str, Tensor]
IN_FLIGHT = 20  # steps that may be queued on the device


def training_parser(description: str | None) -> argparse.ArgumentParser:
    """The options that codes.py, decoder.py and talker.py share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--shards", type=int, required=True)
    parser.add_argument("--until", type=float, required=True, help="when to end, in seconds since 1970")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-graph", action="store_true")
    parser.add_argument("--log-every", type=int, default=100)
    return parser


class Step:
    """A step without arguments: it draws its own batch, updates the weights and returns the values to report.

    These networks are so small that launching their kernels takes longer than running them. A CUDA graph launches all
    with one call.
    """

    def __init__(self, function: Callable[[], Values], graph: bool) -> None:
        self._function = function
        self._graph: torch.cuda.CUDAGraph | None = None
        self.values: Values = {}
        if graph:
            self._capture()

    def __call__(self) -> None:
        if self._graph:
            self._graph.replay()
        else:
            self.values = self._function()

    def _capture(self) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._function()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.values = self._function()
        self._graph = graph


class Rate:
    """A learning rate that warms up over steps and then falls to its final value as time runs out."""

    def __init__(self, device: str, peak: float, final: float, warmup: int) -> None:
        self.value = torch.zeros((), device=device)
        self.peak, self.final, self.warmup = peak, final, warmup

    def set(self, step: int, progress: float) -> None:
        """Set the value of a step; `progress` is the share of the time that has passed."""
        self.value.fill_(min((step + 1) / self.warmup, 1) * (self.final + (self.peak - self.final) * (1 - progress)))


def until(moment: float, device: str) -> Iterator[tuple[int, float]]:
    """Count steps until a moment in seconds since 1970, each with the share of the time that has passed."""
    start, step = time.time(), 0
    while (now := time.time()) < moment:
        yield step, (now - start) / (moment - start)
        step += 1
        if device == "cuda" and step % IN_FLIGHT == 0:
            torch.cuda.synchronize()


def adamw(module: nn.Module, rate: Rate, betas: tuple[float, float], weight_decay: float) -> torch.optim.AdamW:
    """Make an optimizer that can be captured in a graph. Vectors are not decayed."""
    trained = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0},
    ]
    on_gpu = rate.value.is_cuda
    return torch.optim.AdamW(groups, lr=rate.value, betas=betas, fused=on_gpu or None, capturable=on_gpu)
