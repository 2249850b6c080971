"""What waits on the queues: counting it, reading the counts, and what operators do about it."""
