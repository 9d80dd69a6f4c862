"""Transfer of elements between arrays, in regions of whole chunks and in bounded memory."""
