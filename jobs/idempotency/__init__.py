"""The idempotency ledger: who runs a key, and what came of it."""

from jobs.idempotency.progress import end_progress, record_progress
from jobs.idempotency.reading import LedgerLine, states
from jobs.idempotency.running import ended, run, sent_attempt

__all__ = ["LedgerLine", "end_progress", "ended", "record_progress", "run", "sent_attempt", "states"]
