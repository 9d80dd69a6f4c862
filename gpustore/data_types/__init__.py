"""Data types, their conversion, units, and elements as nested JSON lists."""
