"""JSON as values: strict parsing, TensorStore's repr, JSON Pointer."""
