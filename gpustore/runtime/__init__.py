"""Futures, the thread pool, contexts, limits, statistics and caches that all operations share."""
