"""Guests: how other libraries use gpustore. A module imports its library, and only on use."""
