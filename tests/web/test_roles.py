"""Who may do what."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Group
from django.core.management import call_command

from console import permissions
from jobs import roles
from jobs.roles import ROLES
from tests.factories import make_letter
from tests.web.people import client_of, make_person, tags

pytestmark = pytest.mark.django_db

ACTIONS = {
    "jobs.replay_deadletter": {roles.OPERATOR, roles.ADMIN},
    "jobs.restore_deadletter": {roles.OPERATOR, roles.ADMIN},
    "jobs.export_deadletter": {roles.OPERATOR, roles.ADMIN},
    "jobs.note_deadletter": {roles.OPERATOR, roles.ADMIN},
    "jobs.triage_failuregroup": {roles.OPERATOR, roles.ADMIN},
    "jobs.control_operation": {roles.OPERATOR, roles.ADMIN},
    "jobs.purge_deadletter": {roles.ADMIN},
    "jobs.edit_deadletter": {roles.ADMIN},
    "jobs.reveal_deadletter": {roles.ADMIN},
    "auth.change_user": {roles.ADMIN},
    "jobs.view_deadletter": {roles.VIEWER, roles.OPERATOR, roles.ADMIN},
    "jobs.view_operation": {roles.VIEWER, roles.OPERATOR, roles.ADMIN},
    "jobs.view_auditentry": {roles.VIEWER, roles.OPERATOR, roles.ADMIN},
}


@pytest.mark.parametrize("permission", sorted(ACTIONS))
def test_each_permission_belongs_to_its_roles(permission):
    having = {name for name in ROLES if make_person(name.lower(), name).has_perm(permission)}

    assert having == ACTIONS[permission]


def test_every_permission_of_a_role_exists():
    for name, wanted in ROLES.items():
        group = Group.objects.get(name=name)
        found = {
            f"{p.content_type.app_label}.{p.codename}"
            for p in group.permissions.select_related("content_type")
        }
        assert found == set(wanted)


def test_migrate_gives_back_what_was_taken_and_keeps_what_was_added():
    group = Group.objects.get(name=roles.VIEWER)
    taken = group.permissions.get(codename="view_deadletter")
    added = Group.objects.get(name=roles.ADMIN).permissions.get(codename="purge_deadletter")
    group.permissions.remove(taken)
    group.permissions.add(added)

    call_command("migrate", verbosity=0)

    assert {taken, added} <= set(group.permissions.all())
    assert Group.objects.filter(name__in=ROLES).count() == 3


def test_every_action_has_its_words():
    assert {each for each in ACTIONS if each.startswith("jobs.")} <= set(permissions.WORDS)


@pytest.mark.parametrize(("role", "refused"), [(roles.VIEWER, 6), (roles.OPERATOR, 2), (roles.ADMIN, 0)])
def test_a_refused_button_stays_and_says_why(role, refused):
    make_letter()

    page = tags(client_of(role).get("/dead-letters/"))

    buttons = [
        each
        for each in page.all("span", class_="button")
        if "takes the permission" in (each.get("title") or "")
    ]
    assert [each["aria-disabled"] for each in buttons] == ["true"] * refused
    assert ("Purging takes the permission “purge dead letters”. Ask an admin." in page.text) is (refused > 0)
