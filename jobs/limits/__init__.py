"""How fast, and how many at once, over the whole fleet.

Redis keeps both, in one script of one round trip, by the server's own clock. docs/limits.md says what
that promises.
"""

from jobs.limits.admission import admit, lifted
from jobs.limits.client import missing_redis

__all__ = ["admit", "lifted", "missing_redis"]
