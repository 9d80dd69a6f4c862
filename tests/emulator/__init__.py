"""What lets device code run on a machine without a GPU. Tests only, never a product path."""
