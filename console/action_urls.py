"""The pages on which an operator acts: a letter, replays, purges, operations, groups."""

from __future__ import annotations

from django.urls import URLPattern

urlpatterns: list[URLPattern] = []
