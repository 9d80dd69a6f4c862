"""Plans: which part of which chunk goes where in an array, as columns of numbers, without I/O."""
