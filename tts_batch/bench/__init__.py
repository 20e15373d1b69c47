"""Measuring an engine: fixed workloads, one measurement, one table."""
