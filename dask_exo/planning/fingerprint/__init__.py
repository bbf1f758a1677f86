"""Fingerprints of tasks: numbers that are equal in the next program if their values are.

`tasks` computes them: from the closure of a task's code and arguments (`code`, `objects`), and of
the data that they name (`stamps`).
"""
