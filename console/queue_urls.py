"""The pages of queues: the list, one queue, and what is done to it."""

from __future__ import annotations

from django.urls import URLPattern

urlpatterns: list[URLPattern] = []
