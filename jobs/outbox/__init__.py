"""Messages that leave when their transaction has committed."""
