"""Copies of arrays and groups, re-chunked or re-encoded, in bounded memory."""
