"""What was extracted from the real wheels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FACTS: dict[str, Any] = json.loads((Path(__file__).parents[3] / "data" / "vllm_0.30.0.json").read_text())
