"""What a GPU, its driver and NVIDIA's libraries do: one question, one file in `probes`."""
