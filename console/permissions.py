"""What each permission allows, in the words of a refusal."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.auth.base_user import AbstractBaseUser
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseBase

from console.security import LoginMiddleware

# "Purging takes the permission “purge dead letters”. Ask an admin."
WORDS: dict[str, tuple[str, str]] = {
    "jobs.view_deadletter": ("Looking at dead letters", "view dead letters"),
    "jobs.replay_deadletter": ("Replaying", "replay dead letters"),
    "jobs.edit_deadletter": ("Editing arguments", "edit the arguments of dead letters"),
    "jobs.purge_deadletter": ("Purging", "purge dead letters"),
    "jobs.restore_deadletter": ("Restoring", "restore purged dead letters"),
    "jobs.export_deadletter": ("Exporting", "export dead letters"),
    "jobs.reveal_deadletter": ("Revealing masked arguments", "reveal masked arguments"),
    "jobs.note_deadletter": ("Writing a note", "write notes on dead letters"),
    "jobs.triage_failuregroup": ("Changing a group", "triage failure groups"),
    "jobs.view_operation": ("Looking at operations", "view operations"),
    "jobs.control_operation": ("Controlling an operation", "control operations"),
    "jobs.view_outboxmessage": ("Looking at the outbox", "view outbox messages"),
    "jobs.retry_outboxmessage": ("Retrying", "send waiting outbox messages at once"),
    "jobs.view_run": ("Looking at jobs", "view runs"),
    "jobs.view_rollup": ("Looking at the numbers", "view rollups"),
    "jobs.view_workerboot": ("Looking at workers", "view worker boots"),
    "jobs.control_workerboot": ("Controlling a worker", "grow, shrink and shut down workers"),
    "jobs.revoke_job": ("Revoking a job", "revoke jobs"),
    "jobs.view_queuesample": ("Looking at queues", "view queue samples"),
    "jobs.pause_queue": ("Pausing a queue", "pause and resume queues"),
    "jobs.peek_queue": ("Looking into a queue", "look at the messages that wait on a queue"),
    "jobs.purge_queue": ("Purging a queue", "purge the messages that wait on a queue"),
    "jobs.view_alert": ("Looking at alerts", "view alerts"),
    "jobs.add_alertrule": ("Making an alert rule", "add alert rules"),
    "jobs.change_alertrule": ("Changing an alert rule", "change alert rules"),
    "jobs.delete_alertrule": ("Deleting an alert rule", "delete alert rules"),
    "jobs.test_alertrule": ("Sending a test", "send a test of an alert rule"),
    "jobs.add_silence": ("Silencing an alert", "add silences"),
    "jobs.view_auditentry": ("Reading the audit", "view the audit"),
}


def refusal(user: AbstractBaseUser | AnonymousUser, permission: str) -> str:
    """Return why ``user`` may not, or "" when they may."""
    if user.has_perm(permission):  # type: ignore[union-attr]
        return ""
    doing, name = WORDS.get(permission, ("This", permission))
    return f"{doing} takes the permission “{name}”. Ask an admin."


def requires(permission: str) -> Callable[[Callable[..., HttpResponseBase]], Callable[..., HttpResponseBase]]:
    """Refuse a view with 403 and the reason to users without ``permission``, and ask others to log in."""

    def decorate(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
        @wraps(view)
        def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            if not request.user.is_authenticated:
                # Where the console is part of another site, no middleware has asked for a login.
                return LoginMiddleware(view).handle_no_permission(request, view)
            if reason := refusal(request.user, permission):
                raise PermissionDenied(reason)
            return view(request, *args, **kwargs)

        return checked

    return decorate
