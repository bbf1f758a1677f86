"""Pipelines of stages with different resource requests, one partition at a time, in bounded memory.

References: Luan et al., "The streaming batch model"; thesis chapter 2.
"""
