"""Runner v1: the plain lockstep runner."""
