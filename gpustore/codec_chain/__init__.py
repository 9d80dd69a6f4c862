"""Chains of codecs: what a codec is, how names are parsed and merged, and the resolved chain."""
