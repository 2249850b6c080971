"""Refused, not found, broken; and whether the console lives."""

from __future__ import annotations

import logging
import re
import sys

from django.contrib.auth.decorators import login_not_required
from django.db import DatabaseError, InterfaceError, OperationalError, connection
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.urls import reverse

logger = logging.getLogger(__name__)

# What is wrong with a database, by what SQLite and PostgreSQL say of it. The whole text may name hosts, and is
# for the log: also those who are not logged in get this page.
_DATABASE_TROUBLE = (
    (r"disk is full|no space left", "Its disk is full. Free some space on it."),
    (r"readonly|read-only", "It takes no writes. It is a standby, or set read-only: see DATABASE_URL."),
    (r"is locked|lock timeout|deadlock", "Another process holds it for long. Wait a moment."),
    (
        r"no such (table|column)|(relation|column) .* does not exist",
        "It is of another version. Run manage.py migrate.",
    ),
)
_DATABASE_AWAY = "It does not answer. See that it runs, and that DATABASE_URL is its address."


def forbidden(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """Say what may not be done and who can allow it."""
    reason = str(exception) if exception is not None else ""
    return render(request, "console/403.html", {"reason": reason}, status=403)


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """Say that nothing is at this address. Without a login nothing else is told."""
    reason = str(exception) if isinstance(exception, Exception) and exception.args else ""
    # The resolver's own exception holds a dictionary of addresses that were tried.
    if exception is not None and exception.args and not isinstance(exception.args[0], str):
        reason = ""
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        plain = {"title": "Not found", "text": "Nothing is at this address.", "link_text": "Log in"}
        return render(
            request, "console/plain_page.html", {**plain, "href": reverse("console:login")}, status=404
        )
    return render(request, "console/404.html", {"reason": reason}, status=404)


def server_error(request: HttpRequest) -> HttpResponse:
    """Answer when a view broke: the database may be gone, so the page asks nothing of it."""
    # Django calls this while it handles what broke the view.
    if trouble := _database_trouble(sys.exception()):
        context = {
            "title": "The database failed",
            "text": (
                f"{trouble} What you asked for may not have been done: look whether it was before you ask again."
                " The error is in the log of the console."
            ),
            "href": "/",
            "link_text": "Overview",
        }
        return HttpResponse(render_to_string("console/plain_page.html", context), status=503)
    return HttpResponse(render_to_string("console/500.html"), status=500)


def _database_trouble(error: BaseException | None) -> str:
    """Say what is wrong with the database and what to do; "" when the error is another, or one of the console."""
    if not isinstance(error, (DatabaseError, InterfaceError)):
        return ""
    for said, trouble in _DATABASE_TROUBLE:
        if re.search(said, str(error), re.IGNORECASE):
            return trouble
    return _DATABASE_AWAY if isinstance(error, (OperationalError, InterfaceError)) else ""


@login_not_required
def healthz(request: HttpRequest) -> HttpResponse:
    """Answer 200 when the web process can read its database, else 503 with the reason."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            cursor.fetchone()
    except DatabaseError as error:
        logger.exception("healthz: the database does not answer", extra={"error": type(error).__name__})
        return HttpResponse("The database does not answer.\n", content_type="text/plain", status=503)
    return HttpResponse("ok\n", content_type="text/plain")
