"""benchmarks/README.md has a row for every script."""

from __future__ import annotations

from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_every_script_is_in_the_table() -> None:
    scripts = {
        ".".join(path.relative_to(BENCHMARKS.parent).with_suffix("").parts)
        for path in BENCHMARKS.rglob("*.py")
        if 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")
    }
    rows = [
        line for line in (BENCHMARKS / "README.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `")
    ]
    named = {row.split("`")[1].split()[0] for row in rows}
    assert named - {"tts-batch"} == scripts
