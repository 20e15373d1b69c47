"""The network of Qwen3-TTS, in the official checkpoint's names."""
