"""The queues of the broker: what waits there, sampled; pause, resume, look and purge."""
