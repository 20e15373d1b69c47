"""The run folder: everything that is read from or written to OUT."""
