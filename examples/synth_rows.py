"""A table made in Python becomes a run folder: `tts-batch synth` from a script."""

import sys

import tts_batch

ROWS = [
    {"id": "doors", "text": "Please mind the closing doors.", "language": "english", "speaker": "ryan", "line": 4},
    {"id": "next", "text": "The next stop is the central station.", "speaker": "serena", "line": 7},
]


def main(out: str, model: str) -> None:
    result = tts_batch.synth(ROWS, out=out, model=model)
    print(f"{result.ok} clips, {result.failed} failures")
    manifest = result.manifest().select(["id", "audio", "duration_s", "line"])  # with the table's other columns
    for row in manifest.to_pylist():
        print(row)


if __name__ == "__main__":
    main(*sys.argv[1:])  # OUT MODEL
