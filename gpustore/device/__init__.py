"""Interface to devices with memory of their own: protocol, command lists, guards, kernels."""
