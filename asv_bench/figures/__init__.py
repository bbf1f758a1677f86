"""Figures of the papers, measured again on several Ray nodes of this machine."""
