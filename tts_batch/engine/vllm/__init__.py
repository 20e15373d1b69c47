"""vLLM-Omni as an engine: our requests, results and deadlines around its Model Runner V2.

    VllmEngine (engine.py)  ── channel ──  host program (host.py)  ── vllm_omni.AsyncOmni ──  its two stage processes

The host is a process group of its own, so that all of vLLM can be ended at once, by whoever outlives whom.
"""
