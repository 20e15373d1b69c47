"""Is this machine, and is this checkpoint, fit for a run? `check_machine`, `check_checkpoint`, `check_parity`."""
