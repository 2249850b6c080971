"""The pages of queues: the list, one queue, and what is done to it. Names are hostile, so they go into the query."""

from __future__ import annotations

from django.urls import URLPattern, path

from console.views import queue_actions, queues

urlpatterns: list[URLPattern] = [
    path("queues/", queues.queue_list, name="queues"),
    path("queues/one/", queues.queue_page, name="queue"),
    path("queues/one/waiting/", queue_actions.waiting, name="queue-waiting"),
    path("queues/one/pause/", queue_actions.pause, name="queue-pause"),
    path("queues/one/resume/", queue_actions.resume, name="queue-resume"),
    path("queues/one/purge/", queue_actions.purge, name="queue-purge"),
]
