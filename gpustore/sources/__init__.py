"""Sources of copies beside Zarr arrays: files of other formats, and arrays of other libraries."""
