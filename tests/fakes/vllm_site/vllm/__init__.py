"""A stand-in for vLLM: the names that `tts_batch.engine.vllm.host` uses, with the real fields."""
