"""The native core: the C++ of ``kernels/host/``, loaded with ctypes where it was compiled.

It calls decoders of other installed libraries by address (``decoders.py``). Where it is missing,
reads and writes take their path in Python.
"""
