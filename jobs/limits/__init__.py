"""How fast, and how many at once, over the whole fleet."""
