"""TensorStore drivers, one file each; the file name is the driver's identifier."""
