"""The Content-Security-Policy, and logins that htmx can follow."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib.auth.middleware import LoginRequiredMiddleware
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

# No inline script or style, no eval, nothing from elsewhere. plotly.js draws under it because
# base.html gives css/charts.css the id that it looks for before it injects its own.
POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)


class ContentSecurityPolicyMiddleware:
    """Puts the policy on every response, the admin's too."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Add the header."""
        response = self.get_response(request)
        response.headers.setdefault("Content-Security-Policy", POLICY)
        return response


class LoginMiddleware(LoginRequiredMiddleware):
    """Login everywhere, and a page that polls when the session ends goes to the login as a whole."""

    def handle_no_permission(  # type: ignore[override]
        self, request: HttpRequest, view_func: Callable[..., HttpResponseBase]
    ) -> HttpResponseBase:
        """Tell htmx to reload the page instead of swapping the login into a part of it."""
        if request.headers.get("HX-Request") == "true":
            response = HttpResponse(status=204)
            response.headers["HX-Refresh"] = "true"
            return response
        return super().handle_no_permission(request, view_func)
