"""Pipelines: the steps of a read and of a write, in order."""
