"""A stand-in for vLLM-Omni, which misbehaves as its requests ask. tests/engine/vllm/test_wheel.py holds it to the real
signatures."""
