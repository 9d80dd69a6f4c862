"""Kernels of devices as the host sees them: instances, sources, descriptors, launches."""
