"""The pages of jobs: finished attempts, and the whole life of one job."""

from __future__ import annotations

from django.urls import URLPattern, path

from console.views import jobs

urlpatterns: list[URLPattern] = [
    path("jobs/", jobs.jobs, name="jobs"),
    # ?id=<job>: ids come from messages, and may be any text.
    path("jobs/one/", jobs.job, name="job"),
]
