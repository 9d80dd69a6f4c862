"""Array metadata: strict JSON to frozen dataclasses and back, one file a format."""
