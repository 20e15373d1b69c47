"""README.md of an export: the Hub's dataset card, for readers and for loaders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from huggingface_hub import DatasetCardData

from tts_batch.dataset.languages import language_code
from tts_batch.export.clips import FinishedClips
from tts_batch.export.target import Target

DATASETS = """from datasets import load_dataset

dataset = load_dataset("path/of/this/folder", split="train")"""
"""How to load a format that `datasets` reads."""

_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


def write_card(clips: FinishedClips, target: Target, loader_metadata: Mapping[str, Any], example: str) -> None:
    """Write README.md: metadata as YAML, with what the loader needs, then text, with an example of loading."""
    metadata = DatasetCardData(
        language=sorted(code for name in clips.languages if (code := language_code(name))) or None,
        size_categories=[next((name for below, name in _SIZES if len(clips) < below), "n>1M")],
        task_categories=["text-to-speech", "automatic-speech-recognition"],
        tags=["audio", "synthetic"],
        **loader_metadata,
    )
    body = _BODY.format(
        title=target.title,
        clips=len(clips),
        rows=clips.num_rows,
        hours=clips.audio_s / 3600,
        rates=" and ".join(f"{rate:,} Hz" for rate in sorted(clips.sample_rates)),
        models=", ".join(f"`{model}`" for model in sorted(clips.models)),
        left_out=describe_left_out(clips.left_out),
        example=example,
    )
    with target.write("README.md") as file:
        file.write(f"---\n{metadata.to_yaml()}\n---\n{body}".encode())


def describe_left_out(left_out: Mapping[str, int]) -> str:
    """Return how many rows are not exported, and why: "2 empty_text, 1 pending", or "none"."""
    return ", ".join(f"{count} {reason}" for reason, count in sorted(left_out.items())) or "none"


_BODY = """
# {title}

{clips} clips of synthetic speech, {hours:.2f} hours, mono at {rates}, made with tts-batch by {models}.
No clip is a recording of a person.

{clips} of {rows} rows of the table are here; left out: {left_out}.

```python
{example}
```

| column | meaning |
|---|---|
| `id`, `text` | of the table; `text` is the text to speak |
| `task`, `language`, `speaker`, `instruct` | what the table asked for |
| `ref_audio`, `ref_text` | the recording of a cloned voice, by name, and its transcript |
| `effective_language`, `effective_speaker` | what the model was given |
| `duration_s`, `sample_rate`, `num_frames` | length in seconds, Hz, codec frames |
| `peak`, `rms_dbfs`, `clipped_samples` | level |
| `seed`, `model`, `model_revision`, `fingerprint` | how it was made |

Any further columns are the table's own.
"""
