"""Estimates of reads and writes, made from plan and codecs without I/O."""
