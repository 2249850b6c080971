"""The idempotency ledger: who runs a key, and what came of it."""
