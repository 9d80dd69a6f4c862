"""What a read will do, said beforehand."""
