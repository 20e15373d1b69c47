"""How fast an engine is: fixed workloads, one measurement, one table."""
