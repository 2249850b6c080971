"""What a mail says, and that nothing from a message can do more than be read."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from html import unescape

import pytest

from console.presenters import alert_list, alert_page
from jobs.alerts import mails, stories, telling
from jobs.alerts.evaluating import evaluate
from jobs.alerts.mails import LATE_MARK
from jobs.core.words import AlertKind, AlertState, LetterState, NotificationKind, SampleLevel
from jobs.models import Alert, AlertRule, DeadLetter, Notification, Operation, QueueSample, WorkerBoot
from tests.factories import NOW, make_copies, make_group, make_letter
from tests.metrics_rows import make_rollup

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)
Make = Callable[..., AlertRule]
# What a hostile task, error or queue could be called.
HOSTILE = (
    '<script>alert("x")</script>',
    '"><img src=x onerror=alert(1)>',
    "{{ settings.SECRET_KEY }}{% debug %}",
    "<!--late--><!channel> <http://evil.example|click>",
    "a\r\nBcc: all@shop.example\r\n\r\nhello",
    "\u202eevil\u2066",
    "x" * 5000,
)


def plain(html: str) -> str:
    """Return what a reader sees of HTML."""
    body = html[html.index("<body") :]
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())


def fire(
    count: int = 150, *, task: str = "shop.tasks.send_receipt", error: str = "Connection refused"
) -> Notification:
    group = make_group(
        task=task[:255], error_type="smtplib.SMTPServerDisconnected", title=error[:255], first_seen_at=NOW
    )
    first = make_letter(group=group, task=task[:255], died_at=NOW - MINUTE, state_changed_at=NOW, death=False)
    make_copies(first, count - 1)
    evaluate(now=NOW)
    return Notification.objects.get(channel="email")


def test_the_text_says_the_same_as_the_html(only_rule: Make) -> None:
    only_rule(
        AlertKind.LETTERS_GROWING, threshold=20, window_minutes=5, runbook_url="https://wiki.example/dead"
    )

    row = fire()

    text, html = " ".join(row.text.split()), plain(row.html)
    for sentence in (
        "Dead letters are growing by 150 a minute",
        "150 jobs died since 03:11 UTC (1 min ago), and 150 dead letters wait in all.",
        "The limit is 20 a minute.",
        "SMTPServerDisconnected",
        "shop.tasks.send_receipt on critical",
        "Open these 150 letters",
        "Nothing is replayed by itself. You get one more mail, when they stop growing.",
        "Rule “Watched”: more than 20 a minute over 5 minutes, all queues.",
        "Runbook",
        "Open the alert",
        "Silence",
        "Change the rule",
        "All times are UTC",
    ):
        assert sentence in text, sentence
        assert sentence in html, sentence
    for address in re.findall(r"https://\S+", row.text):
        assert address in unescape(row.html)


@pytest.mark.parametrize(
    ("recorded", "died", "words"),
    [
        # Recorded all through the hour before; since a while; only lately; not at all.
        ([61], 0, "The limit is 20 a minute; in the hour before it was 0 a minute."),
        ([61], 240, "The limit is 20 a minute; in the hour before it was 4 a minute."),
        ([5], 0, "The limit is 20 a minute. Nothing"),
        ([5], 10, "The limit is 20 a minute. Nothing"),
        ([500], 0, "The limit is 20 a minute. Nothing"),
        ([], 0, "The limit is 20 a minute. Nothing"),
    ],
)
def test_how_it_was_before_is_told_only_when_that_hour_was_recorded(
    only_rule: Make, recorded: list[int], died: int, words: str
) -> None:
    only_rule(AlertKind.LETTERS_GROWING, threshold=20, window_minutes=5)
    for minutes in recorded:
        make_rollup(at=NOW - minutes * MINUTE)
    if died:
        make_copies(make_letter(died_at=NOW - 40 * MINUTE, death=False), died - 1)

    row = fire()

    shown = plain(row.html)
    assert words.removesuffix(" Nothing") in shown
    assert ("in the hour before" in shown) is ("in the hour before" in words)
    assert (Alert.objects.get().before is None) is ("in the hour before" not in words)


def test_how_it_was_before_is_told_without_numbers_when_letters_are_older_than_that_hour(
    only_rule: Make,
) -> None:
    only_rule(AlertKind.LETTERS_GROWING, threshold=20, window_minutes=5)
    make_letter(died_at=NOW - 300 * MINUTE, death=False)
    make_copies(make_letter(died_at=NOW - 40 * MINUTE, death=False), 119)

    assert "in the hour before it was 2 a minute." in plain(fire().html)


@pytest.mark.parametrize("kind", [AlertKind.LETTERS_GROWING, AlertKind.GROUP_FAILING])
@pytest.mark.parametrize("seconds", [629, 631, 655])
def test_the_mail_and_the_page_say_the_same_of_how_long_it_lasted(
    only_rule: Make, kind: AlertKind, seconds: int
) -> None:
    only_rule(kind, threshold=5, window_minutes=1)
    make_copies(make_letter(died_at=NOW - timedelta(seconds=20), death=False), 50)
    evaluate(now=NOW)
    DeadLetter.objects.update(state=LetterState.PURGED)
    evaluate(now=NOW + timedelta(seconds=seconds - 20))

    alert = Alert.objects.get()
    row = Notification.objects.get(kind=NotificationKind.RECOVERED)

    assert alert.state == AlertState.RESOLVED
    assert "Recovered after 10 min" in row.subject
    assert "It lasted 10 min, from" in row.text
    assert alert_list.row_of(alert, now=NOW).lasted_words == "10 min"
    page = alert_page.read(alert, now=NOW + timedelta(hours=1))
    assert [tile.figure for tile in page.tiles if tile.name == "Lasted"] == ["10 min"]
    assert any(entry.text == "after 10 min" for entry in page.life)


def test_a_reminder_and_the_page_say_the_same_of_how_long_it_lasts(only_rule: Make) -> None:
    only_rule(AlertKind.LETTERS_GROWING, threshold=5, window_minutes=60, reminder_seconds=600)
    make_copies(make_letter(died_at=NOW - timedelta(seconds=50), death=False), 500)
    evaluate(now=NOW)
    now = NOW + timedelta(seconds=600)

    evaluate(now=now)

    row = Notification.objects.get(kind=NotificationKind.REMINDER)
    page = alert_page.read(Alert.objects.get(), now=now)
    assert "Still firing after 10 min" in row.subject
    assert [tile.figure for tile in page.tiles if tile.name == "Lasts"] == ["10 min"]


def test_at_most_five_groups_stand_in_a_mail_and_the_rest_is_counted(only_rule: Make) -> None:
    only_rule(AlertKind.LETTERS_GROWING, threshold=1, window_minutes=5)
    for number in range(8):
        group = make_group(title=f"Error {number}", first_seen_at=NOW)
        make_copies(make_letter(group=group, died_at=NOW - MINUTE, death=False), 8 - number)
    evaluate(now=NOW)

    text = Notification.objects.get().text

    assert text.count("on critical") == 5
    assert "- 3 other groups: died 9" in text


@pytest.mark.parametrize("name", HOSTILE)
def test_what_comes_from_messages_is_text_and_nothing_else(only_rule: Make, name: str) -> None:
    only_rule(
        AlertKind.LETTERS_GROWING, threshold=20, window_minutes=5, webhook_url="https://chat.example/hook"
    )

    row = fire(task=name, error=name)

    assert "\n" not in row.subject
    assert "<script" not in row.html
    assert "<img" not in row.html
    assert row.html.count(LATE_MARK) == 1
    assert "SECRET_KEY" not in row.html or "{{ settings.SECRET_KEY }}" in unescape(row.html)
    assert not set("\u202e\u2066\r") & set(row.html + row.text + row.subject)
    assert len(row.html) < 20_000
    body = Notification.objects.get(channel="webhook").body
    assert "<!channel>" not in str(body)
    assert "<http://evil" not in str(body)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_queue_is_text_too(only_rule: Make, name: str) -> None:
    only_rule(AlertKind.NO_CONSUMER)
    QueueSample.objects.create(level=SampleLevel.SAMPLE, queue=name[:255], at=NOW, ready=3, consumers=0)

    evaluate(now=NOW)

    row = Notification.objects.get()
    assert "\n" not in row.subject
    assert len(row.subject) <= 200
    assert "<script" not in row.html
    assert "<img" not in row.html


def test_no_argument_of_a_job_stands_in_a_mail(only_rule: Make) -> None:
    only_rule(AlertKind.LETTERS_GROWING, threshold=1, window_minutes=5)
    make_copies(make_letter(kwargs={"note": "only-for-mara"}, died_at=NOW, death=False), 10)

    evaluate(now=NOW)

    row = Notification.objects.get()
    assert "only-for-mara" not in row.text + row.html


def test_a_recovery_says_how_long_how_many_what_waits_and_who_works_on_it(only_rule: Make) -> None:
    only_rule(AlertKind.LETTERS_GROWING, threshold=20, window_minutes=5)
    fire()
    Operation.objects.create(
        kind="replay",
        state="running",
        created_at=NOW + 5 * MINUTE,
        actor="Mara Lindqvist",
        selected_count=100,
    )

    evaluate(now=NOW + 30 * MINUTE)

    row = Notification.objects.get(kind=NotificationKind.RECOVERED)
    operation = Operation.objects.get()
    text = " ".join(row.text.split())
    assert row.subject == "[production] Recovered after 31 min: dead letters no longer grow"
    assert "The last one died at 03:11 UTC. It lasted 31 min, from 03:11 to 03:42, and 150 jobs died." in text
    assert "150 dead letters still wait for someone." in text
    assert f"Mara Lindqvist started to replay 100 letters at 03:17, as operation {operation.pk}." in text
    assert "Open the letters that wait: https://jobs.shop.example/dead-letters/?q=state:dead" in text


def test_one_letter_is_said_in_the_singular(only_rule: Make) -> None:
    only_rule(AlertKind.LETTERS_GROWING, threshold=0, window_minutes=5)

    text = " ".join(fire(1).text.split())

    assert "1 job died since 03:11 UTC (1 min ago), and 1 dead letter waits in all." in text
    assert "Open this letter" in text


def test_a_mail_of_yesterday_names_the_day(only_rule: Make) -> None:
    only_rule(AlertKind.QUEUE_DEPTH, threshold=1)
    QueueSample.objects.create(level=SampleLevel.SAMPLE, queue="q", at=NOW, ready=3, consumers=1)
    evaluate(now=NOW)

    QueueSample.objects.create(
        level=SampleLevel.SAMPLE, queue="q", at=NOW + 24 * 60 * MINUTE, ready=0, consumers=1
    )
    evaluate(now=NOW + 24 * 60 * MINUTE)

    text = " ".join(Notification.objects.get(kind="recovered").text.split())
    assert "It lasted 24 h, from 12 Nov 03:12 to 03:12 UTC." in text


def test_a_lost_worker_is_told_with_its_queues_and_its_jobs(only_rule: Make) -> None:
    only_rule(AlertKind.WORKER_LOST, window_minutes=60)
    WorkerBoot.objects.create(
        boot_id="b", hostname="celery@web-2", queues=["critical", "bulk"], started_at=NOW, reported_at=NOW,
        last_seen_at=NOW - MINUTE, lost_at=NOW,
    )  # fmt: skip
    make_letter(reason="worker_lost", worker="celery@web-2", died_at=NOW, death=False)

    evaluate(now=NOW)

    row = Notification.objects.get()
    assert row.subject == "[production] Worker celery@web-2 was lost"
    assert "- celery@web-2: last seen 03:11, jobs lost 1\n  on critical and bulk" in row.text
    assert "https://jobs.shop.example/workers/one/?name=celery%40web-2" in row.text


@pytest.mark.parametrize("kind", list(AlertKind))
@pytest.mark.parametrize(
    "state", [NotificationKind.FIRED, NotificationKind.REMINDER, NotificationKind.RECOVERED]
)
def test_every_kind_can_be_told_in_every_state_and_of_several(
    only_rule: Make, kind: AlertKind, state: NotificationKind
) -> None:
    rule = only_rule(kind, threshold=20, task="", queue="")
    groups = [make_group(first_seen_at=NOW) for _ in range(7)]
    for number in (1, 7):
        bundle = [
            Alert(
                pk=index + 1, rule=rule, subject=str(group.pk), state=AlertState.FIRING, began_at=NOW - MINUTE,
                value=30, peak=40,
            )
            for index, group in enumerate(groups[:number])
        ]  # fmt: skip
        if kind in {
            AlertKind.LETTERS_GROWING,
            AlertKind.LATENCY,
            AlertKind.FAILURE_RATE,
            AlertKind.RETRY_RATE,
        }:
            bundle[0].subject = ""

        story = telling.story_of(state, bundle, now=NOW)
        mail = mails.mail(story)

        assert mail.subject.startswith("[production] ")
        assert story.headline in unescape(mail.html)
        assert "None" not in mail.text
        assert mails.webhook_body(story)["attachments"]


def test_row_50_a_retry_storm_is_told_with_the_tasks_that_are_retried_and_a_link_to_their_attempts(
    only_rule: Make,
) -> None:
    rule = only_rule(AlertKind.RETRY_RATE, threshold=50, window_minutes=10, queue="critical")
    for task, retried in (("shop.tasks.send_receipt", 180), ("shop.tasks.charge", 4)):
        make_rollup(at=NOW - MINUTE, task=task, queue="critical", done=20, retried=retried)
    alert = Alert(pk=1, rule=rule, state=AlertState.FIRING, began_at=NOW - MINUTE, value=90, peak=90)

    mail = mails.mail(telling.story_of(NotificationKind.FIRED, [alert], now=NOW))

    assert mail.subject == "[production] 90 % of attempts fail and are retried on critical since 03:11 UTC"
    assert "- shop.tasks.send_receipt: retried 180, attempts 200\n- shop.tasks.charge: retried 4" in mail.text
    assert "/jobs/?q=outcome:retried+queue:critical" in mail.text


@pytest.mark.parametrize(
    ("queue", "rows"),
    [
        ("", "- critical: p95 7 min 51 s, attempts 1\n- low: p95 29 s, attempts 1\n"),
        ("critical", "- shop.tasks.charge: p95 7 min 51 s, attempts 1\n"),
    ],
)
def test_jobs_that_start_late_are_told_with_where_they_wait(only_rule: Make, queue: str, rows: str) -> None:
    rule = only_rule(AlertKind.LATENCY, threshold=60, percentile=95, queue=queue)
    make_rollup(at=NOW - MINUTE, task="shop.tasks.charge", queue="critical", done=1, latency=[480])
    make_rollup(at=NOW - MINUTE, task="shop.tasks.clean", queue="low", done=1, latency=[30])
    # Before the window of five minutes.
    make_rollup(at=NOW - 9 * MINUTE, task="shop.tasks.clean", queue="old", done=1, latency=[9])
    alert = Alert(pk=1, rule=rule, state=AlertState.FIRING, began_at=NOW - MINUTE, value=480, peak=480)

    mail = mails.mail(telling.story_of(NotificationKind.FIRED, [alert], now=NOW))

    assert f"\n\n{rows}\n" in mail.text


def test_names_are_listed_as_people_do() -> None:
    assert stories.listed([]) == ""
    assert stories.listed(["a"]) == "a"
    assert stories.listed(["a", "b", "c"]) == "a, b and c"
    assert stories.listed(["a", "b", "c"], most=2) == "a, b and 1 more"


def test_what_waits_elsewhere_is_told_apart_from_what_was_in_question(only_rule: Make) -> None:
    only_rule(AlertKind.LETTERS_GROWING, threshold=20, window_minutes=5)
    fire()
    DeadLetter.objects.update(state=LetterState.RESOLVED)
    make_letter(died_at=NOW - timedelta(days=1), death=False)

    evaluate(now=NOW + 10 * MINUTE)

    text = " ".join(Notification.objects.get(kind="recovered").text.split())
    assert "None of them waits any more; 1 dead letter still waits for someone." in text


def test_a_mail_that_says_two_things_first_says_them_in_both_parts(only_rule: Make) -> None:
    """A recovery that tells what could not be told before may itself come late."""
    only_rule(AlertKind.LETTERS_GROWING, threshold=20, window_minutes=5)
    row = fire()

    for note in ("That it fired could not be told.", "This comes late."):
        row.text, row.html = mails.with_lateness(row.text, row.html, note=note)

    words = "This comes late. That it fired could not be told. "
    assert " ".join(row.text.split()).startswith(words)
    assert plain(row.html).startswith(words)
