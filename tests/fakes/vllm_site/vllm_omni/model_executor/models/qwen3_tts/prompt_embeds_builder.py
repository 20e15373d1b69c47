"""The real length of a prompt: the function's source, as extracted from the wheel."""

from __future__ import annotations

from typing import Any

from vllm.facts import FACTS

_NAMES: dict[str, Any] = {}
for _source in FACTS["sources"].values():
    exec(_source, _NAMES)


class Qwen3TTSPromptEmbedsBuilder:
    estimate_prompt_len_from_additional_information = staticmethod(
        _NAMES["estimate_prompt_len_from_additional_information"]
    )
