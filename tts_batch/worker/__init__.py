"""The worker program: one engine, its rows, and the clip processes that finish them."""
