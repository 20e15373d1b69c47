"""From checked rows to planned ones: models, budgets, seeds, fingerprints."""
