"""What will be made: checks, models, budgets, seeds, fingerprints."""
