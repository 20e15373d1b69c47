"""SamplingParams: the real names, and the real checks of the ones that matter here."""

from __future__ import annotations

from enum import Enum
from typing import Any

from vllm.facts import FACTS


class RequestOutputKind(Enum):
    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class SamplingParams:
    def __init__(self, **values: Any) -> None:
        unknown = [name for name in values if name not in FACTS["fields"]["SamplingParams"]]
        if unknown:
            raise TypeError(f"Unexpected keyword argument {unknown}")
        self.min_tokens, self.max_tokens, self.temperature, self.output_kind = 0, 16, 1.0, RequestOutputKind.CUMULATIVE
        self.__dict__.update(values)
        if self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens must be less than or equal to max_tokens={self.max_tokens}")
