"""Which part of which chunk goes where: connected sets, windows, chunk plans, copy plans."""
