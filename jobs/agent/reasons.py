"""The names of endings, as they travel. The list of the other side is jobs/core/words.py; a test compares."""

from __future__ import annotations

# Deaths.
FAILED = "failed"
RETRIES_EXHAUSTED = "retries_exhausted"
TIMED_OUT = "timed_out"
WORKER_LOST = "worker_lost"
REJECTED = "rejected"
EXPIRED = "expired"
UNREGISTERED = "unregistered"
MALFORMED = "malformed"
UNDECODABLE = "undecodable"
RETRY_NOT_SENT = "retry_not_sent"
RESULT_NOT_STORED = "result_not_stored"

DEATHS = frozenset(
    {
        FAILED,
        RETRIES_EXHAUSTED,
        TIMED_OUT,
        WORKER_LOST,
        REJECTED,
        EXPIRED,
        UNREGISTERED,
        MALFORMED,
        UNDECODABLE,
        RETRY_NOT_SENT,
        RESULT_NOT_STORED,
    }
)

# Endings that are no death; also what a replayed job reports as its outcome.
DONE = "done"
IGNORED = "ignored"
REVOKED = "revoked"
TERMINATED = "terminated"
