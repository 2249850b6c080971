"""``manage.py mark_deploy``: a line in the charts, and who drew it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import time_machine
from django.core.management import CommandError, call_command

from jobs.core import windows
from jobs.metrics.deploys import deploys_in
from jobs.models import AuditEntry, Deploy

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 11, 12, 3, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _at_night():
    with time_machine.travel(NOW, tick=False):
        yield


def test_a_deployment_is_marked_now_and_audited(capsys):
    call_command("mark_deploy", "5f2c1e9", "--actor", "ci")

    assert capsys.readouterr().out == "Marked 5f2c1e9 at 2026-11-12 03:12:00 UTC.\n"
    assert list(Deploy.objects.values_list("name", "at")) == [("5f2c1e9", NOW)]
    entry = AuditEntry.objects.get()
    assert (entry.actor, entry.action) == ("ci (command)", "deploy")
    assert entry.text == "marked the deployment 5f2c1e9 at 2026-11-12 03:12:00 UTC"


def test_who_deployed_may_be_bytes_that_are_no_text():
    call_command("mark_deploy", "5f2c1e9", "--actor", "ci\udcff")

    assert AuditEntry.objects.get().actor == "ci\ufffd (command)"


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-11-12T02:38Z", datetime(2026, 11, 12, 2, 38, tzinfo=UTC)),
        ("2026-11-12 02:38", datetime(2026, 11, 12, 2, 38, tzinfo=UTC)),
        ("2026-11-12T03:38+01:00", datetime(2026, 11, 12, 2, 38, tzinfo=UTC)),
    ],
)
def test_a_deployment_may_be_marked_afterwards(text, at):
    call_command("mark_deploy", "5f2c1e9", "--at", text)

    assert Deploy.objects.get().at == at


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["  "], "needs a name"),
        (["x" * 101], "101 characters and may have 100"),
        (["\udcff"], "no line of printable text"),
        (["a\x00b"], "no line of printable text"),
        (["v2\nv3"], "no line of printable text"),
        (["v2", "--at", "9999-12-31T23:59-14:00"], "cannot be read"),
        (["v2", "--at", "yesterday"], "'yesterday' cannot be read. Write it as 2026-11-12T02:38Z"),
        (["v2", "--at", "2026-11-31T10:00Z"], "cannot be read"),
        (["v2", "--at", "2026-11-12T04:00Z"], "04:00:00 UTC lies ahead"),
    ],
)
def test_what_cannot_be_marked_is_refused_with_what_to_do(arguments, words):
    with pytest.raises(CommandError, match=words):
        call_command("mark_deploy", *arguments)

    assert not Deploy.objects.exists()
    assert not AuditEntry.objects.exists()


def test_a_window_has_its_newest_deployments_by_time():
    for number in range(60):
        Deploy.objects.create(name=f"v{number}", at=NOW - timedelta(minutes=number))

    found = deploys_in(windows.named("1h", now=NOW))

    assert len(found) == 50
    assert [each.name for each in (found[0], found[-1])] == ["v49", "v0"]
