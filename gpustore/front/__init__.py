"""Objects that users hold: opened arrays, specs and groups, and the functions that open them."""
