"""What happens to a GET of an address that only acts."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import reverse

View = Callable[..., HttpResponseBase]


def acts_on(page: str, argument: str = "") -> Callable[[View], View]:
    """Let a view act on POST only; lead a GET to ``page`` of the ``argument`` and say that nothing was done.

    A page without an argument is a list. Such a GET comes after a login in the middle of an action, and
    from a reload of an answer.
    """

    def decorate(view: View) -> View:
        @wraps(view)
        def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            if request.method == "POST":
                return view(request, *args, **kwargs)
            if request.method in {"GET", "HEAD"}:
                messages.warning(request, "Nothing was done: only the button on this page acts.")
                named = {argument: kwargs[argument]} if argument else {}
                return HttpResponseRedirect(reverse(page, kwargs=named))
            return HttpResponseNotAllowed(["POST"])

        return checked

    return decorate
