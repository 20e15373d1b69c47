"""Tiny checkpoints that need no network: the official layout and every code path, and noise for a voice.

`build_tiny` writes them in a fraction of a second, into a cache, from names, seeds and a few hand-written numbers.
Their weights are random: no sentence can be heard in what they say, and no quality can be measured on them. What
they are for is everything else: trying the command line, testing, and comparing this network with the official one.

    tiny-random   Random weights. The official package was run on the very same weights; the arrays it gave are in
                  tests/golden. When a clip ends is an accident: many rows run into their budget.
    tiny          The same weights with a clock inside (clock.py), so that rows end by themselves after about 1 to
                  6 s. A trained voice will take over this name.

Both come as base, custom_voice and voice_design in the structure of the 1.7B models (a projection between talker and
code predictor), and as base and custom_voice in that of the 0.6B models. A checkpoint has 3.6 to 4.6 million
parameters and a codec of 1.9 million: 64 wide instead of 2048, 3 layers instead of 28, but the released 16 codebooks
of 2048 codes, frame rate, sampling rate, token names, languages and speakers. The tokenizer is a byte-level BPE of 640
entries with all of the released control tokens: it writes any language, in many more tokens than the released one.

The files are those of the hub repositories: config.json, generation_config.json, preprocessor_config.json,
tokenizer_config.json, vocab.json, merges.txt, model.safetensors (bfloat16) and speech_tokenizer/ (float32).

In this package: shapes.py lists the tensors, values.py fills them, clock.py makes `tiny` stop, build.py writes the
folder; data/ holds the files that are copied and the codec's calibration. Numpy is all it takes.
"""

from tts_batch.model.tiny.build import NAMES, build_tiny, cache_folder

__all__ = ["NAMES", "build_tiny", "cache_folder"]
