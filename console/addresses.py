"""Where a queue, a task, a job or a worker has its page. Names come from messages, so they go into the query."""

from __future__ import annotations

from urllib.parse import urlencode

from django.urls import reverse


def queue_page(name: str, *, window_query: str = "") -> str:
    """Return the address of a queue's page, in the given time window."""
    return _address("queue", window_query, name=name)


def task_page(name: str, *, window_query: str = "") -> str:
    """Return the address of a task's page, in the given time window."""
    return _address("task", window_query, name=name)


def worker_page(hostname: str, *, window_query: str = "") -> str:
    """Return the address of a worker's page."""
    return _address("worker", window_query, name=hostname)


def job_page(task_id: str) -> str:
    """Return the address of a job's life."""
    return _address("job", "", id=task_id)


def worker_action(action: str, hostname: str) -> str:
    """Return the address of the page that asks before a worker is told something: grow, shrink, shut-down."""
    return _address(f"worker-{action}", "", name=hostname)


def revoke_page(task_id: str) -> str:
    """Return the address of the page that asks before a job is revoked."""
    return _address("worker-revoke", "", id=task_id)


def queue_action(action: str, name: str) -> str:
    """Return the address of what is done to a queue: pause, resume, purge, waiting."""
    return _address(f"queue-{action}", "", name=name)


def letters_of(query: str) -> str:
    """Return the address of the list of the dead letters that a search finds."""
    return f"{reverse('console:letters')}?{urlencode({'q': query})}"


def groups_of(query: str) -> str:
    """Return the address of the failure groups of the dead letters that a search finds."""
    return f"{reverse('console:groups')}?{urlencode({'q': query})}"


def jobs_of(query: str) -> str:
    """Return the address of the list of the finished attempts that a search finds."""
    return f"{reverse('console:jobs')}?{urlencode({'q': query})}"


def _address(page: str, window_query: str, **values: str) -> str:
    query = urlencode(values)
    return f"{reverse(f'console:{page}')}?{query}{'&' if window_query else ''}{window_query}"
