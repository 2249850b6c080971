"""The three roles and what each may do. They are groups of Django's, made and completed by migrate.

- Viewer sees everything that is not masked.
- Operator also replays, restores, exports, writes notes, triages groups, controls operations, pauses queues and
  looks into them, revokes jobs, silences alerts and tests their rules.
- Admin also purges letters and queues, edits arguments, reveals masked values, controls workers, changes alert
  rules and schedules, and manages users.

migrate only adds: a permission that somebody took away from a role comes back, one that somebody
added stays. For other roles make other groups.
"""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.apps import apps as installed
from django.apps.registry import Apps
from django.contrib.auth.management import create_permissions

VIEWER = "Viewer"
OPERATOR = "Operator"
ADMIN = "Admin"

_VIEWER = frozenset(
    f"jobs.view_{model}"
    for model in (
        *("deadletter", "death", "failuregroup", "worker", "auditentry"),
        *("outboxmessage", "idempotencyrecord", "jobprogress", "beatprocess"),
        *("operation", "operationstage", "operationitem", "operationevent"),
        *("run", "rollup", "workerboot", "deploy", "queuesample", "queuepause", "queueaction"),
        *("alert", "alertrule", "silence", "notification"),
    )
) | {
    f"django_celery_beat.view_{model}"
    for model in ("periodictask", "intervalschedule", "crontabschedule", "solarschedule", "clockedschedule")
}
_OPERATOR = _VIEWER | {
    "jobs.replay_deadletter",
    "jobs.restore_deadletter",
    "jobs.export_deadletter",
    "jobs.note_deadletter",
    "jobs.triage_failuregroup",
    "jobs.control_operation",
    "jobs.retry_outboxmessage",
    "jobs.pause_queue",
    "jobs.peek_queue",
    "jobs.revoke_job",
    "jobs.add_silence",
    "jobs.test_alertrule",
}
_ADMIN = (
    _OPERATOR
    | {"jobs.purge_deadletter", "jobs.edit_deadletter", "jobs.reveal_deadletter"}
    | {"jobs.purge_queue", "jobs.control_workerboot"}
    | {"jobs.add_alertrule", "jobs.change_alertrule", "jobs.delete_alertrule"}
    | {
        f"django_celery_beat.{verb}_{model}"
        for verb in ("add", "change", "delete")
        for model in (
            *("periodictask", "intervalschedule", "crontabschedule"),
            *("solarschedule", "clockedschedule"),
        )
    }
    | {f"auth.{verb}_{model}" for verb in ("add", "change", "delete", "view") for model in ("user", "group")}
)

ROLES: dict[str, frozenset[str]] = {VIEWER: _VIEWER, OPERATOR: _OPERATOR, ADMIN: _ADMIN}
_APPS = ("jobs", "auth", "django_celery_beat")


def create_roles(sender: AppConfig, *, apps: Apps = installed, using: str = "default", **_: Any) -> None:
    """Give the roles the permissions of one application, once it is migrated."""
    if sender.label not in _APPS or not installed.is_installed("django.contrib.auth"):
        return
    # The receiver of django.contrib.auth makes them too, but maybe after this one.
    create_permissions(sender, verbosity=0, using=using, apps=apps)
    try:
        group_model = apps.get_model("auth", "Group")
        permission_model = apps.get_model("auth", "Permission")
    except LookupError:
        return
    known = {
        f"{sender.label}.{permission.codename}": permission
        for permission in permission_model.objects.using(using).filter(content_type__app_label=sender.label)
    }
    for name, wanted in ROLES.items():
        group, _created = group_model.objects.using(using).get_or_create(name=name)
        group.permissions.add(*(known[each] for each in sorted(wanted) if each in known))
