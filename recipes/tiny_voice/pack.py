"""Packs exported checkpoints into the package, where `--model tiny` finds them.

    PYTHONPATH=../.. python pack.py CHECKPOINTS

CHECKPOINTS is what export.py wrote: its stored/ holds the weights, as tts_batch/model/tiny/build.py reads them.
Afterwards raise VERSION in tts_batch/model/tiny/build.py, since caches keep what they have, and take over the checksums
in tests/model/test_tiny.py.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from tts_batch.model.tiny.build import WEIGHTS

PACKAGE = Path(__file__).parents[2] / "tts_batch" / "model" / "tiny" / "trained"
FILES = ("config.json", "generation_config.json", "vocab.json", "merges.txt", "speech_tokenizer/config.json")
# The tags that mean something. A dialect is what two of its speakers were trained with where no language is given.
LANGUAGES = ("english", "beijing_dialect", "sichuan_dialect")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoints", type=Path)
    checkpoints = parser.parse_args().checkpoints
    (PACKAGE / "speech_tokenizer").mkdir(parents=True, exist_ok=True)
    for name in WEIGHTS:
        shutil.copyfile(checkpoints / "stored" / name, PACKAGE / name)
    for name in FILES:
        shutil.copyfile(checkpoints / "base" / name, PACKAGE / name)
    # Base's configuration lacks the speakers, CustomVoice's the speaker encoder. The package's has both.
    config = json.loads((PACKAGE / "config.json").read_text())
    named = json.loads((checkpoints / "custom_voice" / "config.json").read_text())["talker_config"]
    languages = {name: named["codec_language_id"][name] for name in LANGUAGES}
    speakers = {key: named[key] for key in ("spk_id", "spk_is_dialect")}
    config["talker_config"] |= {"codec_language_id": languages} | speakers
    (PACKAGE / "config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    main()
