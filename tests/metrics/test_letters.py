"""Dead letters by queue, task and worker."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from console.presenters import queue_list, queue_page, task_page, worker_list, worker_page
from console.windows import PageWindow
from jobs.core import windows
from jobs.core.words import LetterState
from jobs.metrics.letters import dead_by
from tests.factories import NOW, make_letter
from tests.metrics_rows import TASK, make_boot, make_rollup, make_sample

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("each_database")]


def test_only_what_is_dead_now_is_counted_by_name():
    make_letter(queue="critical")
    make_letter(queue="critical")
    make_letter(queue="low")
    make_letter(queue="low", state=LetterState.RESOLVED)

    counted = dead_by("queue", ["critical", "low", "nowhere"])

    assert (counted["critical"], counted["low"], counted.get("nowhere", 0)) == (2, 1, 0)
    assert dead_by("queue", []) == {}


def test_many_names_take_one_query_for_each_four_hundred():
    make_letter(task="task-399")

    with CaptureQueriesContext(connection) as asked:
        counted = dead_by("task", [f"task-{number}" for number in range(800)])

    assert len(asked) == 2
    assert counted["task-399"] == 1


def test_the_pages_read_the_same_on_either_database():
    make_sample(ready=12, consumers=2, at=NOW)
    make_rollup(at=NOW, done=9, dead=1, latency=[0.5])
    make_letter(queue="critical", task=TASK)
    make_boot()
    page_window = PageWindow(windows.named("1h", now=NOW))

    assert queue_list.read(page_window.window, now=NOW).rows[0].dead == 1
    assert queue_page.read("critical", page_window, now=NOW).dead == 1
    assert queue_page.read("nowhere", page_window, now=NOW) is None
    assert task_page.read(TASK, page_window, now=NOW).dead == 1
    assert worker_list.read(now=NOW).rows[0].hostname == "celery@web-1"
    assert worker_page.read("celery@web-1", now=NOW).is_online
