"""The pages of jobs: finished attempts, and the whole life of one job."""

from __future__ import annotations

from django.urls import URLPattern

urlpatterns: list[URLPattern] = []
