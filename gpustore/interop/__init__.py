"""Guests: how other libraries use gpustore. Each module imports its library, and is imported on use."""
