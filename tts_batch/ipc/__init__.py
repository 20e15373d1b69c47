"""What the processes of a run send each other."""
