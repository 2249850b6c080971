"""What machines read: the numbers for Prometheus, and whether this process can serve."""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.core.cache import cache
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from django.utils.crypto import constant_time_compare
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from console import permissions
from jobs import exposition, health
from jobs.health import Check

_READY_KEY = "console.readyz"
# A probe a second of each of many balancers costs no more than this.
_READY_SECONDS = 3


@require_safe
@never_cache
@login_not_required
def metrics(request: HttpRequest) -> HttpResponse:
    """Tell the numbers to whoever has the token or may see them on the pages."""
    if not _has_token(request):
        if not request.user.is_authenticated:
            return _unauthorised(request)
        if reason := permissions.refusal(request.user, "jobs.view_rollup"):
            return HttpResponse(f"{reason}\n", content_type="text/plain; charset=utf-8", status=403)
    content_type, text = exposition.text(request.headers.get("Accept", ""), now=timezone.now())
    return HttpResponse(text, content_type=content_type)


def _has_token(request: HttpRequest) -> bool:
    wanted = getattr(settings, "METRICS_TOKEN", "")
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    is_given = bool(wanted) and scheme.lower() == "bearer"
    return is_given and constant_time_compare(given.strip(), wanted)


def _unauthorised(request: HttpRequest) -> HttpResponse:
    if not getattr(settings, "METRICS_TOKEN", ""):
        advice = "Set METRICS_TOKEN for the console and send it as a bearer token, or log in."
    elif "Authorization" in request.headers:
        advice = "The token that was sent is not METRICS_TOKEN. Send it as: Authorization: Bearer <token>."
    else:
        advice = "Send METRICS_TOKEN as: Authorization: Bearer <token>. Or log in."
    response = HttpResponse(
        f"These numbers need a token or a login. {advice}\n",
        content_type="text/plain; charset=utf-8",
        status=401,
    )
    response.headers["WWW-Authenticate"] = 'Bearer realm="metrics"'
    return response


@require_safe
@never_cache
@login_not_required
def readyz(request: HttpRequest) -> JsonResponse:
    """Answer 200 when the console can serve, else 503; what it looked at is some seconds old at most.

    Without runops it is degraded and still serves: it is where an operator sees that runops is away.
    """
    checks: list[Check] | None = cache.get(_READY_KEY)
    if checks is None:
        checks = health.readiness()
        cache.set(_READY_KEY, checks, _READY_SECONDS)
    is_ready = all(check.is_good for check in checks if check.is_required)
    is_whole = all(check.is_good for check in checks)
    status = ("ready" if is_whole else "degraded") if is_ready else "not ready"
    found = {check.name: {"ok": check.is_good, "text": check.text} for check in checks}
    return JsonResponse({"status": status, "checks": found}, status=200 if is_ready else 503)
