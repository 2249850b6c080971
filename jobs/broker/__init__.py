"""The broker, as the collector, the operations and the outbox use it: through kombu, with timeouts, never re-declaring."""

from jobs.broker.connection import connect

__all__ = ["connect"]
