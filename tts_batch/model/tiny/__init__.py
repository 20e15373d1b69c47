"""Tiny checkpoints that need no network, in the official layout: a trained voice, and random ones for tests.

`build_tiny` writes them in a few seconds or less, into a cache.

    tiny          A voice that speaks English: trained on speech of espeak-ng, by recipes/tiny_voice, and as robotic as
                  its teacher. As base, custom_voice and voice_design, one talker in all three, in the structure of the
                  1.7B models (a projection between talker and code predictor).
    tiny-random   Random weights. The official package was run on the very same weights; the arrays it gave are in
                  tests/golden. When a clip ends is an accident: many rows run into their budget.

`tiny-random` comes in the structure of the 0.6B models too: 3.6 to 4.6 million parameters and a codec of 1.9 million,
made of names, seeds and a few hand-written numbers. `tiny` has about 9 million and a codec of about 5. All have the
files, codebooks, rates, token names and speakers of the released ones, and a byte-level BPE of 640 entries.

In this package: build.py writes the folder, from the trained weights in trained/ or values.py's random ones; data/
holds the files that are copied and the random codec's calibration. torch is loaded only where one is built.
"""

from tts_batch.model.tiny.build import NAMES, build_tiny

__all__ = ["NAMES", "build_tiny"]
