"""The broker, as the console and the outbox use it: through kombu, with timeouts, never re-declaring."""

from jobs.broker.connection import connect

__all__ = ["connect"]
