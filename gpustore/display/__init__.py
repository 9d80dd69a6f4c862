"""Descriptions of arrays and groups for people: facts, texts, tables and pictures.

Each is made of the public members of a store or group. ``import gpustore`` does not load this room:
stores and groups find its modules by name, and commands print its facts.
"""
