"""A table made in Python, a run folder out: the notebook door to `tts-batch synth`."""

import sys

import tts_batch

ROWS = [
    {"id": "door", "text": "Please mind the closing doors.", "language": "english", "speaker": "ryan", "line": 4},
    {"id": "next", "text": "The next stop is the central station.", "speaker": "serena", "line": 7},
]


def main(out: str, model: str) -> None:
    result = tts_batch.synth(ROWS, out=out, model=model)
    print(f"{result.ok} clips, {result.failed} failures")
    manifest = result.manifest().select(["id", "audio", "duration_s", "line"])  # the table's own columns come along
    for row in manifest.to_pylist():
        print(row)


if __name__ == "__main__":
    main(*sys.argv[1:])  # OUT MODEL
