"""The pages of the console, to include anywhere: ``path("", include("console.urls"))``."""

from __future__ import annotations

from django.conf import settings
from django.urls import URLPattern, path

from console import action_urls, alert_urls, job_urls, machine_urls, queue_urls, worker_urls
from console.views import audit, auth, components, errors, letters, overview, several_groups

app_name = "console"

urlpatterns: list[URLPattern] = [
    path("", overview.overview, name="overview"),
    path("dead-letters/", letters.letters, name="letters"),
    path("groups/", letters.groups, name="groups"),
    path("groups/selected/", letters.selected_groups, name="groups-selected"),
    path("groups/triage/", several_groups.triage_several, name="groups-triage"),
    path("find/", letters.find, name="find"),
    path("audit/", audit.audit, name="audit"),
    path("login/", auth.Login.as_view(), name="login"),
    path("logout/", auth.Logout.as_view(), name="logout"),
    path("theme/", auth.theme, name="theme"),
    path("healthz", errors.healthz, name="healthz"),
    *action_urls.urlpatterns,
    *queue_urls.urlpatterns,
    *job_urls.urlpatterns,
    *worker_urls.urlpatterns,
    *alert_urls.urlpatterns,
    *machine_urls.urlpatterns,
]

if settings.DEBUG:
    urlpatterns += [path("components/", components.components, name="components")]
