"""The pages of workers and what is done to them, and a task's page."""

from __future__ import annotations

from django.urls import URLPattern

urlpatterns: list[URLPattern] = []
