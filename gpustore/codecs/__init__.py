"""Registered codecs, one module or package an algorithm, named by the codec's identifier."""
