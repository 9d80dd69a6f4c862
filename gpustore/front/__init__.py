"""What the user holds: open, stores, specs and groups."""
