"""The engines: the contract, and our own behind it."""
