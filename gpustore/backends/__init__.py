"""Backends: how chunk bytes become array elements in host or device memory, and back."""
