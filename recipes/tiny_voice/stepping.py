"""How training steps run: until a given time, one after another, each replayed as one CUDA graph where that works."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

Values = dict[str, Tensor]
IN_FLIGHT = 20  # steps that may be queued on the device


def training_parser(description: str | None, log_every: int) -> argparse.ArgumentParser:
    """Return a parser of the options that all trainings have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--shards", type=int, required=True)
    parser.add_argument("--until", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-graph", action="store_true")
    parser.add_argument("--log-every", type=int, default=log_every)
    return parser


class Step:
    """A step without arguments: it draws its batch itself, updates the weights and gives back what to report.

    These networks are so small that launching their kernels one by one takes longer than running them. A graph
    launches them all at once.
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
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                self._function()
        torch.cuda.current_stream().wait_stream(aside)
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
        """Set the value for a step, `progress` of the time being over."""
        self.value.fill_(min((step + 1) / self.warmup, 1) * (self.final + (self.peak - self.final) * (1 - progress)))


def until(moment: float, device: str) -> Iterator[tuple[int, float]]:
    """Count steps, with the share of the time that is over, until `moment` in seconds since 1970."""
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
