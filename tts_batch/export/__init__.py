"""A run's finished clips as a dataset that other programs open: one module for each format."""
