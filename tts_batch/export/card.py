"""README.md of an export, the dataset card of the Hub: what a reader and a loader must know of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from tts_batch.dataset.languages import language_code
from tts_batch.export.clips import FinishedClips
from tts_batch.export.target import Target

DATASETS = """from datasets import load_dataset

dataset = load_dataset("path/of/this/folder", split="train")"""
"""How to load what `datasets` opens."""

_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


def write_card(clips: FinishedClips, target: Target, loading: Mapping[str, Any], how: str) -> None:
    """Write README.md: YAML for the Hub, with `loading` what its loader must be told, and words, with `how` to load."""
    front = {
        "language": sorted(code for name in clips.languages if (code := language_code(name))),
        "task_categories": ["text-to-speech", "automatic-speech-recognition"],
        "tags": ["audio", "synthetic"],
        "size_categories": [next((name for below, name in _SIZES if len(clips) < below), "n>1M")],
        **loading,
    }
    head = yaml.safe_dump({key: value for key, value in front.items() if value}, sort_keys=False, allow_unicode=True)
    body = _BODY.format(
        title=target.folder.resolve().name,
        clips=len(clips),
        rows=clips.num_rows,
        hours=clips.audio_s / 3600,
        rates=" and ".join(f"{rate:,} Hz" for rate in sorted(clips.sample_rates)),
        models=", ".join(f"`{model}`" for model in sorted(clips.models)),
        left_out=tell_left_out(clips.left_out),
        how=how,
    )
    with target.write("README.md") as file:
        file.write(f"---\n{head}---\n{body}".encode())


def tell_left_out(left_out: Mapping[str, int]) -> str:
    """Say what is not exported, and why: "2 empty_text, 1 pending", or "none"."""
    return ", ".join(f"{count} {reason}" for reason, count in sorted(left_out.items())) or "none"


_BODY = """
# {title}

{clips} clips of synthetic speech, {hours:.2f} hours, mono at {rates}, made with tts-batch by {models}.
No clip is a recording of a person.

{clips} of {rows} rows of the table are here; left out: {left_out}.

```python
{how}
```

| column | meaning |
|---|---|
| `id`, `text` | of the table; `text` is what was to be said |
| `task`, `language`, `speaker`, `instruct` | what the table asked for |
| `ref_audio`, `ref_text` | the recording of a cloned voice, by name, and its words |
| `effective_language`, `effective_speaker` | what the model was given |
| `duration_s`, `sample_rate`, `num_frames` | length in seconds, Hz, codec frames |
| `peak`, `rms_dbfs`, `clipped_samples` | level |
| `seed`, `model`, `model_revision`, `fingerprint` | how it was made |

Any further columns are the table's own.
"""
