"""What was really raised, when Celery can only send one of its base classes to the parent.

Celery replaces an exception that cannot be pickled by the nearest base class that can, mostly without
a message, and writes the traceback of that one: urllib's HTTPError becomes ``OSError``. In the child
the original is still being handled when ``task_failure`` is sent, and the text that travels may be
put right there. A signal may be missing (it is when the result backend is down): then the death is
captured all the same, under the name of the base class.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

from celery import signals


def keep_originals() -> None:
    """Receive ``task_failure`` in this process and those it forks."""
    signals.task_failure.connect(name_original, weak=False, dispatch_uid="jobs.agent.task_failure")


def name_original(einfo: Any = None, exception: BaseException | None = None, **_: Any) -> None:
    """Write the traceback of the exception that is being handled into ``einfo``, if it is another one."""
    original = sys.exc_info()[1]
    if original is None or exception is None or type(original) is type(exception):
        return
    einfo.traceback = "".join(traceback.format_exception(original))
