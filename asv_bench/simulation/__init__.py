"""Simulated pipelines, lower bounds and random faults, for benchmarks and tests."""
