"""gpustore beside its peers, on pytest-benchmark; see README.md."""
