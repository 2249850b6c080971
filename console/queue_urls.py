"""The pages of queues: the list, one queue, and what is done to it. Names are hostile, so they go into the query."""

from __future__ import annotations

from django.urls import URLPattern, path

from console.views import queues

urlpatterns: list[URLPattern] = [
    path("queues/", queues.queue_list, name="queues"),
    path("queues/one/", queues.queue_page, name="queue"),
]
