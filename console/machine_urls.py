"""What machines read: Prometheus and health checks. ``healthz`` stands in ``console.urls``."""

from __future__ import annotations

from django.urls import URLPattern, path

from console.views import machines

urlpatterns: list[URLPattern] = [
    path("metrics", machines.metrics, name="metrics"),
    path("readyz", machines.readyz, name="readyz"),
]
