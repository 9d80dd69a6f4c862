"""Key-value stores, one module or package each, named by the driver's identifier."""
