"""Context resources, one file each; the file name is the resource's identifier."""
