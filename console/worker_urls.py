"""The pages of workers and what is done to them, and a task's page. Names are hostile, so they go into the query."""

from __future__ import annotations

from django.urls import URLPattern, path

from console.views import tasks, worker_actions, workers

urlpatterns: list[URLPattern] = [
    path("workers/", workers.worker_list, name="workers"),
    path("workers/one/", workers.worker_page, name="worker"),
    path("workers/one/grow/", worker_actions.grow, name="worker-grow"),
    path("workers/one/shrink/", worker_actions.shrink, name="worker-shrink"),
    path("workers/one/shut-down/", worker_actions.shut_down, name="worker-shut-down"),
    path("workers/revoke/", worker_actions.revoke, name="worker-revoke"),
    path("tasks/one/", tasks.task_page, name="task"),
]
