"""A masked value is nowhere to be seen without the permission: not by name, not by its place, not in any output."""

from __future__ import annotations

import io

import pytest
from django.core.management import call_command
from django.utils import timezone

from jobs import exporting
from jobs.collector.storing import store
from jobs.models import AuditEntry, DeadLetter, Worker
from tests.factories import NOW, make_record
from tests.web.people import Client, admin, client_of, operator, viewer

pytestmark = pytest.mark.django_db

SECRET = "hunter2"
TASK = "shop.tasks.send_receipt"
PARAMETERS = {
    "names": ["order_id", "password"], "required": 2, "var_args": False, "var_kwargs": False, "kwonly": [],
    "kwonly_required": [],
}  # fmt: skip


def worker_knows(**changes) -> None:
    tasks = {TASK: {**PARAMETERS, **changes}}
    Worker.objects.create(hostname="celery@web-1", seen_at=timezone.now(), tasks=tasks, queues=["critical"])


@pytest.fixture(
    params=["by name", "by place, told at its death", "by place, known to a worker", "renamed since"]
)
def letter(request) -> DeadLetter:
    """A letter whose password is in its arguments in one of the ways there are."""
    if request.param == "by name":
        record = make_record(kwargs={"order_id": 1, "deep": [{"card_password": SECRET}]})
    elif request.param == "by place, known to a worker":
        worker_knows()
        record = make_record(args=[1, SECRET], kwargs={}, parameters=None)
    else:
        if request.param == "renamed since":
            worker_knows(names=["order_id", "pass_phrase"])
        record = make_record(args=[1, SECRET], kwargs={}, parameters=["order_id", "password"])
    store([record], now=NOW)
    return DeadLetter.objects.get()


def pages(letter: DeadLetter) -> list[str]:
    q = f"?id={letter.uuid}"
    return [
        "/", "/dead-letters/", f"/dead-letters/?q={SECRET}", "/groups/", "/operations/", "/audit/",
        f"/dead-letters/{letter.uuid}/", f"/dead-letters/{letter.uuid}/edit/",
        f"/dead-letters/{letter.uuid}/traceback/", f"/groups/{letter.group_id}/",
        f"/dead-letters/replay/{q}", f"/dead-letters/purge/{q}", f"/dead-letters/export/{q}",
    ]  # fmt: skip


@pytest.mark.parametrize("log_in", [viewer, operator, admin])
def test_no_page_shows_it(letter, log_in):
    client: Client = log_in()

    for url in pages(letter):
        text = client.get(url, follow=True).content.decode()
        assert SECRET not in text.replace(f"q={SECRET}", "").replace(f'value="{SECRET}"', "") or url.endswith(
            SECRET
        ), url


def test_a_search_does_not_tell_that_it_is_there(letter):
    client = viewer()

    answers = {
        client.get("/dead-letters/", {"q": f"{text}"}).content.count(str(letter.uuid).encode())
        for text in (
            SECRET,
            f"args.password:{SECRET}",
            f"args.1:{SECRET}",
            f"args.deep.0.card_password:{SECRET}",
        )
    }

    assert answers == {0}


def test_no_masked_export_or_command_shows_it(letter):
    written = b"".join(exporting.lines(DeadLetter.objects.all(), is_masked=True)).decode()
    out = io.StringIO()
    for arguments in (
        ["list"],
        ["list", "--json"],
        ["show", str(letter.uuid)],
        ["show", str(letter.uuid), "--json"],
    ):
        call_command("dead_letters", *arguments, stdout=out)

    assert SECRET not in written + out.getvalue()


def test_an_operators_export_is_masked_and_an_admins_is_whole(letter):
    page = operator().get(f"/dead-letters/export/?id={letter.uuid}")
    frozen = page.context["frozen"]

    masked = b"".join(client_of("Operator", login="other").post("/dead-letters/export/", {"frozen": frozen}))
    whole = b"".join(admin().post("/dead-letters/export/", {"frozen": frozen}))

    assert SECRET.encode() not in masked
    assert b'"record"' in whole


def test_revealing_shows_it_once_and_says_so(letter):
    client = admin()

    shown = client.post(f"/dead-letters/{letter.uuid}/reveal/", follow=True)
    again = client.get(f"/dead-letters/{letter.uuid}/")

    assert SECRET in shown.content.decode()
    assert SECRET not in again.content.decode()
    assert AuditEntry.objects.filter(action="reveal", letter=letter).count() == 1
    assert SECRET not in str(list(AuditEntry.objects.values()))


def test_an_editor_that_keeps_the_mask_does_not_put_it_into_the_operation_page(letter):
    client = admin()
    page = client.get(f"/dead-letters/{letter.uuid}/edit/")

    checked = client.post(
        f"/dead-letters/{letter.uuid}/edit/",
        {"args": page.context["typed"].args, "kwargs": '{"order_id": 2}', "frozen": page.context["frozen"]},
    )

    assert SECRET not in checked.content.decode()
