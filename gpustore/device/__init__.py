"""What gpustore needs of a device with memory of its own: protocol, command lists, kernels."""
