"""tts-batch: a table of texts in, a folder of checked speech clips out, with Qwen3-TTS."""

__version__ = "0.1.0.dev0"
