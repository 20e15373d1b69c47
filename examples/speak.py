"""One open model: single clips with `speak`, many with `stream`, each saved when it is finished."""

import sys
from pathlib import Path

from tts_batch import Synthesizer


def main(out: str, model: str) -> None:
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    with Synthesizer(model) as synthesizer:
        clip = synthesizer.speak("One sentence, one clip.", speaker="aiden", language="english", seed=7)
        clip.save(folder / "one.wav")

        rows = ({"id": f"count-{n}", "text": f"This is number {n}.", "speaker": "vivian"} for n in range(3))
        for clip in synthesizer.stream(rows):  # in the order in which they finish
            if clip.failure:
                print(clip.id, clip.failure.reason, clip.failure.message)
            else:
                clip.save(folder / f"{clip.id}.wav")
                print(clip.id, f"{clip.duration_s:.2f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])  # OUT MODEL
