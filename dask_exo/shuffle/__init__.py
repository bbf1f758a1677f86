"""Shuffles as programs: an algorithm submits tasks and waits, and never looks at data."""
