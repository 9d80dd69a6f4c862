"""Groups and arrays in a hierarchy: nodes by logical path, and their attributes."""
