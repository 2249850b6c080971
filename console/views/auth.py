"""Log in, log out, choose light or dark."""

from __future__ import annotations

from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.views import LoginView, LogoutView
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST

from console.forms.login import LoginForm
from console.shell import THEMES

_YEAR_SECONDS = 31_536_000


@method_decorator(login_not_required, name="dispatch")
class Login(LoginView):
    """The login page; somebody who is logged in goes on to where they wanted to go."""

    template_name = "console/login.html"
    authentication_form = LoginForm
    redirect_authenticated_user = True


class Logout(LogoutView):
    """Log out by POST; GET is refused, so that no picture in a page can do it."""


def safe_next(request: HttpRequest, fallback: str) -> str:
    """Return the address in ``next`` when it is one of ours, else ``fallback``."""
    address = request.POST.get("next") or request.GET.get("next") or ""
    if url_has_allowed_host_and_scheme(
        address, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    ):
        return address
    return fallback


@login_not_required
@require_POST
def theme(request: HttpRequest) -> HttpResponse:
    """Keep light, dark or the system's choice in a cookie, and go back."""
    response = HttpResponseRedirect(safe_next(request, reverse("console:overview")))
    chosen = request.POST.get("theme", "")
    if chosen in THEMES:
        response.set_cookie("theme", chosen, max_age=_YEAR_SECONDS, samesite="Lax")
    else:
        response.delete_cookie("theme", samesite="Lax")
    return response
