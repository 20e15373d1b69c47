"""A recipe's keys are JobConfig's; the command line wins; data lie beside the recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from tts_batch.cli.options import read_job
from tts_batch.errors import UsageError


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text("data: rows.csv\naudio_root: voices\nout: wavs\nseed: 3\ngpus: [0, 1]\nmap: {text: line}\n")
    return path


def test_keys_and_paths(recipe: Path) -> None:
    job = read_job({"data": (), "seed": None}, recipe=str(recipe))
    assert job.data == (str(recipe.parent / "rows.csv"),)
    assert job.audio_root == recipe.parent / "voices"
    assert job.out == Path("wavs")  # relative to where the command runs
    assert (job.seed, job.gpus, job.map) == (3, (0, 1), {"text": "line"})


def test_the_command_line_wins(recipe: Path) -> None:
    job = read_job({"data": ("other.csv",), "seed": 0, "greedy": True}, recipe=str(recipe))
    assert (job.data, job.seed, job.greedy) == (("other.csv",), 0, True)


def test_absolute_and_remote_tables_stay(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("data: [/abs/a.csv, 's3://bucket/b.parquet']\nout: o\n")
    assert read_job({}, recipe=str(path)).data == ("/abs/a.csv", "s3://bucket/b.parquet")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("data: a.csv\nout: o\ntemprature: 1\n", "did you mean 'temperature'"),
        ("data: a.csv\nout: o\ntop_k: many\n", "'top_k' cannot be 'many'"),
        ("data: a.csv\nout: o\ntemperature: .inf\n", "'temperature' cannot be inf"),
        ("data: [unclosed\n", "cannot be read"),
        ("- a.csv\n", "must be a mapping"),
        ("", "must be a mapping"),
        ("out: o\n", "'data' is missing"),
        ("data: []\nout: o\n", "'data' cannot be"),
        ("data: 5\nout: o\n", "'data' cannot be 5"),
    ],
)
def test_a_bad_recipe_is_a_usage_error(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=words):
        read_job({}, recipe=str(path))


def test_a_missing_recipe_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_job({}, recipe=str(tmp_path / "none.yaml"))
