"""Host side of the device kernels: instances, sources, descriptors, launches."""
