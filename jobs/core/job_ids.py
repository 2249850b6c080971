"""Ids of the jobs that a replay makes: the same whenever they are asked for, and with their item's id in them.

So a batch that is sent again after a crash has the ids it had, and the letter that a job replays is found
without an index on the job ids: an index of random values would be a fifth of what a replay writes.
"""

from __future__ import annotations

import hashlib
import re

_JOB_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-a[0-9a-f]{3}-[0-9a-f]{12}")


def derive(seed: bytes, item_id: int) -> tuple[str, str]:
    """Return a task id, in the form of a version 4 UUID that ends in the item's id, and a publication id."""
    digits = hashlib.blake2b(b"%s:%d" % (seed, item_id), digest_size=32).hexdigest()
    task_id = f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{item_id:012x}"
    return task_id, digits[32:]


def item_id(task_id: str) -> int | None:
    """Return the id of the item whose job may have this id; None when it is no id of a replayed job.

    Any UUID may look like one, so compare the item's own ``task_id``.
    """
    return int(task_id[-12:], 16) if _JOB_ID.fullmatch(task_id) else None
