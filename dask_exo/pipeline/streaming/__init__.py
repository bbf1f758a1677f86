"""Pipelines of stages with different needs, one partition at a time, under one memory limit.

References: Luan et al., "The streaming batch model"; thesis chapter 2.
"""
