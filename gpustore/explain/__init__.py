"""Estimates of reads, made from plan and codecs without I/O."""
