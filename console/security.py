"""The Content-Security-Policy, and logins that htmx can follow."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from django.contrib import messages
from django.contrib.auth.middleware import LoginRequiredMiddleware
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.http import url_has_allowed_host_and_scheme

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
    """Puts the policy on every response, the admin's too, and keeps pages with jobs in them out of caches."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Add the headers."""
        response = self.get_response(request)
        response.headers.setdefault("Content-Security-Policy", POLICY)
        user = getattr(request, "user", None)
        if user is not None and user.is_authenticated:
            # After a logout the browser's back button must not show them.
            response.headers.setdefault("Cache-Control", "no-store, private")
        return response


class LoginMiddleware(LoginRequiredMiddleware):
    """Login everywhere, and a page that polls when the session ends goes to the login as a whole."""

    def handle_no_permission(  # type: ignore[override]
        self, request: HttpRequest, view_func: Callable[..., HttpResponseBase]
    ) -> HttpResponseBase:
        """Tell htmx to reload the page; lead somebody who acted back to the page they acted on."""
        if request.headers.get("HX-Request") == "true":
            response = HttpResponse(status=204)
            response.headers["HX-Refresh"] = "true"
            return response
        if request.method != "POST":
            return super().handle_no_permission(request, view_func)
        # The address of an action shows nothing by itself; the page with its button does.
        messages.warning(request, "The session had ended before that, so nothing was done.")
        page = request.headers.get("Referer", "")
        is_ours = url_has_allowed_host_and_scheme(
            page, allowed_hosts={request.get_host()}, require_https=request.is_secure()
        )
        path = urlsplit(page)._replace(scheme="", netloc="").geturl() if is_ours else request.get_full_path()
        return redirect_to_login(path)
