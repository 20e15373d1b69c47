"""Small real tables and recordings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.dataset.support import ReadRows


@pytest.fixture
def read(tmp_path: Path) -> ReadRows:
    return ReadRows(tmp_path)


@pytest.fixture
def tone() -> Callable[..., NDArray[np.float32]]:
    """A voice-like tone of `seconds` at `rate_hz`, float32 [samples]."""

    def make(seconds: float = 2.0, rate_hz: int = 24_000) -> NDArray[np.float32]:
        t = np.arange(round(seconds * rate_hz)) / rate_hz
        return (0.3 * np.sin(2 * np.pi * 180 * t) * (0.6 + 0.4 * np.sin(2 * np.pi * 3 * t))).astype(np.float32)

    return make
