"""Futures, threads, contexts, limits, statistics: what every operation runs with."""
