"""Shards: their index, their refiner, and the codec of a whole shard."""
