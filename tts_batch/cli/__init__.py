"""The click commands, one module each."""
