"""GPU kernels of the hot loops, each beside its torch twin: the twin is the meaning, and what runs without CUDA."""
