"""Codecs, one file an algorithm; `chain` resolves the codecs of an array into one chain."""
