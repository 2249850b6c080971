"""Searches find exactly what they say, in a fixed number of queries, on both databases."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta

import pytest

from jobs import search
from jobs.core import job_ids
from jobs.core.query import parse
from jobs.core.words import GroupState, LetterState, Reason
from jobs.models import DeadLetter
from jobs.search.conditions import MAX_DISTINCT_NAMES
from tests.factories import NOW, make_group, make_item, make_letter, make_operation

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("each_database")]


def q(text: str):
    return parse(text, now=NOW)


def minutes(number: float):
    return NOW - timedelta(minutes=number)


@pytest.fixture
def letters():
    """One letter for each thing a search can tell apart; the name of a letter is its job's id."""
    return {
        "receipt": make_letter(task_id="receipt", died_at=minutes(1), kwargs={"order_id": 48213, "note": "a_b%c"}),
        "card": make_letter(
            task_id="card", died_at=minutes(30), task="shop.pay.charge_card", queue="pay", worker="celery@pay-1",
            reason=Reason.RETRIES_EXHAUSTED, error_type="requests.exceptions.HTTPError",
            error="503 Server Error for url: https://pay.example", kwargs={"order_id": 48219, "amount": "74.90"},
        ),
        "image": make_letter(
            task_id="image", died_at=minutes(90), task="shop.images.resize", queue="long", worker="celery@img-2",
            reason=Reason.TIMED_OUT, error_type="billiard.exceptions.TimeLimitExceeded", error="100% timed_out",
            kwargs={"path": "two words", "size": "big"},
        ),
        "bare": make_letter(
            task_id="bare", died_at=minutes(120), task="", queue="", reason=Reason.MALFORMED, error_type="",
            error="Größe 5 \u20ac", kwargs={}, arguments_text="",
        ),
        "gone": make_letter(task_id="gone", died_at=minutes(10), state=LetterState.RESOLVED),
        "binned": make_letter(task_id="binned", died_at=minutes(20), state=LetterState.PURGED),
        "again": make_letter(task_id="again", died_at=minutes(25), state=LetterState.REPLAYING),
    }  # fmt: skip


DEAD = {"receipt", "card", "image", "bare"}
ALL = DEAD | {"gone", "binned", "again"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", DEAD),
        ("state:any", ALL),
        ("state:purged", {"binned"}),
        ("state:resolved,replaying", {"gone", "again"}),
        ("-state:dead", {"gone", "binned", "again"}),
        ("state:dead -state:dead", set()),
        ("task:shop.pay.charge_card", {"card"}),
        ("task:charge_card", {"card"}),
        ("task:charge", set()),
        ("task:charge*", {"card"}),
        ("task:shop.*", {"receipt", "card", "image"}),
        ("task:*card", {"card"}),
        ("task:SHOP.*", set()),
        ("task:charge_card,resize", {"card", "image"}),
        ("-task:shop.*", {"bare"}),
        ('task:""', {"bare"}),
        ("task:nosuch", set()),
        ("-task:nosuch", DEAD),
        ("queue:pay", {"card"}),
        ("queue:pay,long", {"card", "image"}),
        ("queue:*a*", {"receipt", "card"}),
        ("-queue:pay", DEAD - {"card"}),
        ('queue:""', {"bare"}),
        ("reason:timed_out", {"image"}),
        ("reason:failed,malformed", {"receipt", "bare"}),
        ("-reason:failed", {"card", "image", "bare"}),
        ("error:HTTPError", {"card"}),
        ("error:httperror", {"card"}),
        ('error:"connection refused"', {"receipt"}),
        ("error:503*url", {"card"}),
        ("error:100%", {"image"}),
        ("error:d_o", {"image"}),
        ("error:100*_out", {"image"}),
        ("error:HTTPError,TimeLimitExceeded", {"card", "image"}),
        ("-error:o", {"bare"}),
        ("error:Größe", {"bare"}),
        ("worker:celery@pay-1", {"card"}),
        ("worker:celery@*-2", {"image"}),
        ("worker:pay-1", set()),
        ("since:1h", {"receipt", "card"}),
        ("until:1h", {"image", "bare"}),
        ("since:100m until:20m", {"card", "image"}),
        ("args.order_id:48213", {"receipt"}),
        ("args.order_id:4821", set()),
        ("args.order_id:4821*", {"receipt", "card"}),
        ("args.order_id:*9", {"card"}),
        ("args.order_id:*", {"receipt", "card"}),
        ("args.order_id:48213,48219", {"receipt", "card"}),
        ("-args.order_id:48213", {"card", "image", "bare"}),
        ("args.id:48213", set()),
        ('args.path:"two words"', {"image"}),
        # The value ends where its line ends: "two words … big" is no value of path.
        ("args.path:two*big", set()),
        ("args.path:two*s", {"image"}),
        ("args.note:a_b%c", {"receipt"}),
        ("args.note:a*c", {"receipt"}),
        ("args.note:axb%c", set()),
        ("refused", {"receipt"}),
        ("REFUSED", {"receipt"}),
        ('"server error"', {"card"}),
        ("74.90", {"card"}),
        ("resize", {"image"}),
        ("-refused", {"card", "image", "bare"}),
        ("503 order_id", {"card"}),
        ("503*example", {"card"}),
        ("id:card", {"card"}),
        ("id:card,image", {"card", "image"}),
        ("task:shop.* -queue:pay since:1h refused", {"receipt"}),
    ],
)
def test_a_search_finds_exactly(letters, text, found):
    assert set(search.letters(q(text)).values_list("task_id", flat=True)) == found
    assert search.count(q(text)) == len(found)
    assert search.breakdown(search.letters(q(text))).total == len(found)
    assert {letter.task_id for letter in search.page(q(text)).letters} == found
    assert sum(row.letters for row in search.groups(q(text))) == len(found)
    assert sum(search.group_states(q(text)).values()) == len(search.groups(q(text)))
    assert sum(sum(row.buckets) for row in search.groups(q(text))) == len(found)


def test_a_group_is_found_by_its_number_and_its_fingerprint(letters):
    group = letters["card"].group

    for text in (f"group:{group.pk}", f"group:{group.fingerprint}", f"group:{group.fingerprint[:12]}"):
        assert [letter.task_id for letter in search.letters(q(text))] == ["card"]


def test_a_letter_is_found_by_its_id_and_its_beginning(letters):
    letter = letters["card"]

    for text in (str(letter.uuid), letter.uuid.hex, letter.short_id, str(letter.uuid)[:11]):
        assert [found.task_id for found in search.letters(q(f"id:{text}"))] == ["card"]


def test_since_is_included_and_until_is_not(letters):
    moment = minutes(30).isoformat().replace("+00:00", "Z")

    assert "card" in search.letters(q(f"since:{moment}")).values_list("task_id", flat=True)
    assert "card" not in search.letters(q(f"until:{moment}")).values_list("task_id", flat=True)


@pytest.mark.parametrize(
    "text", ["' OR 1=1 --", 'task:"\'"', "args.x':1", "args.x;--:%", "error:%_\\\\", "🙂 ‮x"]
)
def test_hostile_searches_find_nothing_and_break_nothing(letters, text):
    assert search.count(q(text)) == 0
    search.timeline(q(text), now=NOW)


def test_an_argument_with_a_star_in_the_middle_stays_on_its_line():
    make_letter(arguments_text="\na=x\n\nb=y\n")

    assert search.count(q("args.a:x*y")) == 0
    assert search.count(q("args.a:*y")) == 0
    assert search.count(q("args.b:*y")) == 1


def test_names_are_listed_without_repetition(letters):
    assert search.names("queue") == ["", "critical", "long", "pay"]
    assert search.names("task") == [
        "",
        "shop.images.resize",
        "shop.pay.charge_card",
        "shop.tasks.send_receipt",
    ]


def test_too_many_names_are_matched_row_by_row():
    group = make_group()
    DeadLetter.objects.bulk_create(
        make_letter_row(group, task=f"shop.t{number}") for number in range(MAX_DISTINCT_NAMES + 1)
    )

    assert search.names("task") is None
    assert search.count(q("task:t7")) == 1
    assert search.count(q("task:*7")) == 200
    assert search.count(q("-task:t7")) == MAX_DISTINCT_NAMES


def make_letter_row(group, **fields):
    return DeadLetter(
        **{
            "group": group,
            "reason": Reason.FAILED,
            "state_changed_at": NOW,
            "first_died_at": NOW,
            "died_at": NOW,
            **fields,
        }
    )


def many(number: int, group=None, **fields) -> list[DeadLetter]:
    group = group or make_group()
    return DeadLetter.objects.bulk_create(
        make_letter_row(group, task_id=str(n), died_at=minutes(n // 3), uuid=uuid.uuid4(), **fields)
        for n in range(number)
    )


@pytest.mark.parametrize("order", search.ORDERS)
@pytest.mark.parametrize("text", ["", "state:any"])
def test_pages_follow_each_other_without_gap_or_repetition(order, text):
    many(8, state=LetterState.DEAD)
    many(6, state=LetterState.RESOLVED)
    query = q(text)
    ordering = ("-died_at", "-id") if order == "-died" else ("died_at", "id")
    expected = list(search.letters(query).order_by(*ordering).values_list("pk", flat=True))

    pages = [search.page(query, limit=3, order=order)]
    while pages[-1].next_cursor:
        pages.append(search.page(query, limit=3, order=order, cursor=pages[-1].next_cursor))
    back = [pages[-1]]
    while back[-1].previous_cursor:
        back.append(search.page(query, limit=3, order=order, cursor=back[-1].previous_cursor))

    assert [letter.pk for page in pages for letter in page.letters] == expected
    assert [page.first_number for page in pages] == list(range(1, len(expected) + 1, 3))
    assert pages[-1].last_number == pages[0].total == len(expected)
    assert [[letter.pk for letter in page.letters] for page in reversed(back)] == [
        [letter.pk for letter in page.letters] for page in pages
    ]
    assert (pages[0].previous_cursor, pages[-1].next_cursor) == (None, None)


def test_an_empty_page():
    page = search.page(q(""))

    assert (page.letters, page.total, page.first_number, page.last_number) == ([], 0, 0, 0)
    assert (page.next_cursor, page.previous_cursor) == (None, None)


def test_a_new_letter_moves_no_row_to_another_page():
    many(6)
    first = search.page(q(""), limit=3)
    make_letter(died_at=NOW + timedelta(seconds=1))

    second = search.page(q(""), limit=3, cursor=first.next_cursor)

    assert {letter.pk for letter in first.letters}.isdisjoint(letter.pk for letter in second.letters)
    assert second.first_number == 5


@pytest.mark.parametrize(
    "cursor",
    ["", "x", "after", "after.1.2", "over.20261112T031200000000.5", "after.20261112T031200000000.0",
     "after.20261112T031200000000.99999999999999999999", "after.20261112T031200000000.-1", "a.b.c.d", "\x00.\x00.\x00"],
)  # fmt: skip
def test_a_cursor_that_is_not_ours_is_refused(cursor):
    with pytest.raises(
        search.CursorError, match=r"is not a place in this list\. Start again from its first page\."
    ):
        search.page(q(""), cursor=cursor)


def test_an_order_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="letters are not ordered by 'error'"):
        search.page(q(""), order="error")
    with pytest.raises(ValueError, match="groups are not ordered by 'x'"):
        search.groups(q(""), order="x")


def test_groups_are_counted_with_the_queue_and_reason_of_their_newest_letter():
    group, other = make_group(), make_group(state=GroupState.KNOWN)
    make_letter(group=group, died_at=minutes(30), queue="old")
    make_letter(group=group, died_at=minutes(5), queue="new", reason=Reason.TIMED_OUT)
    make_letter(group=group, died_at=minutes(1), queue="gone", state=LetterState.RESOLVED)
    make_letter(group=other, died_at=minutes(2))

    first, second = search.groups(q("since:1h"), spark_buckets=60)

    assert (first.group, first.letters, first.queue, first.reason) == (group, 2, "new", Reason.TIMED_OUT)
    assert (first.first_died_at, first.last_died_at) == (minutes(30), minutes(5))
    assert [minute for minute, count in enumerate(first.buckets) if count] == [30, 55]
    assert (second.group, second.letters) == (other, 1)
    assert search.group_states(q("since:1h")) == {GroupState.NEW: 1, GroupState.KNOWN: 1}


@pytest.mark.parametrize("text", ["", "task:send_receipt"])
@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("-letters", ["big", "late", "early"]),
        ("letters", ["late", "early", "big"]),
        ("-last", ["late", "big", "early"]),
        ("last", ["early", "big", "late"]),
        ("-first", ["late", "big", "early"]),
        ("first", ["early", "big", "late"]),
    ],
)
def test_groups_are_ordered(order, expected, text):
    by_title = {title: make_group(title=title) for title in ("late", "early", "big")}
    make_letter(group=by_title["late"], died_at=minutes(1))
    make_letter(group=by_title["early"], died_at=minutes(60))
    for minute in (10, 20):
        make_letter(group=by_title["big"], died_at=minutes(minute))

    assert [row.group.title for row in search.groups(q(text), order=order)] == expected


@pytest.mark.parametrize("text", ["", "task:send_receipt"])
def test_groups_of_some_states_only(text):
    new, muted = make_group(), make_group(state=GroupState.MUTED)
    for group in (new, muted):
        make_letter(group=group)

    assert [row.group for row in search.groups(q(text), states=[GroupState.MUTED])] == [muted]


def test_the_newest_groups_are_kept_when_there_are_too_many():
    for minute in range(5):
        make_letter(died_at=minutes(minute))

    rows = search.groups(q(""), order="-last", limit=2)

    assert [row.last_died_at for row in rows] == [minutes(0), minutes(1)]


def test_a_breakdown_counts_the_biggest_first():
    many(3, task="a", queue="x")
    many(2, task="b", queue="x", reason=Reason.TIMED_OUT)

    shares = search.breakdown(search.letters(q("")))

    assert [(share.name, share.count) for share in shares.by_task] == [("a", 3), ("b", 2)]
    assert [(share.name, share.count) for share in shares.by_queue] == [("x", 5)]
    assert [(share.name, share.count) for share in shares.by_reason] == [("failed", 3), ("timed_out", 2)]
    assert (shares.oldest, shares.newest, shares.total) == (minutes(0), minutes(0), 5)


def test_a_breakdown_of_nothing():
    shares = search.breakdown(search.letters(q("")))

    assert (shares.by_task, shares.oldest, shares.newest, shares.total) == ([], None, None, 0)


def test_find_knows_ids_their_beginning_and_jobs(letters):
    letter = letters["gone"]

    assert search.find(str(letter.uuid)) == letter
    assert search.find(f" {letter.uuid.hex[:10]} ") == letter
    assert search.find("card") == letters["card"]


def test_find_takes_the_letter_of_the_only_job_whose_id_begins_so():
    job = "9efa8f36-5db6-4a84-873e-36ce0f332975"
    make_letter(task_id=job, died_at=minutes(5))
    newest = make_letter(task_id=job, died_at=minutes(1))
    other = make_letter(task_id="9efa8f37-5db6-4a84-873e-36ce0f332975")

    assert search.find("9efa8f36") == newest
    assert search.find("9efa8f37-5d") == other
    assert search.find("9efa8f3") is None


@pytest.mark.parametrize("text", ["", "  ", "nosuch", "\x00", "ffff\x00", "x" * 10_000, "zz", "abc"])
def test_find_knows_nothing_else(letters, text):
    assert search.find(text) is None


def test_find_takes_the_newest_letter_of_a_job():
    make_letter(task_id="j", died_at=minutes(5))
    newest = make_letter(task_id="j", died_at=minutes(1))

    assert search.find("j") == newest


def test_a_letter_is_found_by_the_id_of_the_job_that_replayed_it():
    letter = make_letter()
    item = make_item(make_operation(), letter)
    item.task_id, _ = job_ids.derive(b"seed", item.pk)
    item.save()
    of_another_seed, _ = job_ids.derive(b"another", item.pk)

    assert search.find(item.task_id) == letter
    assert search.find(of_another_seed) is None
    assert list(search.letters(q(f"id:{item.task_id}"))) == [letter]
    assert search.find("") is None


@pytest.mark.parametrize("qualifier", ["task", "queue", "worker", "args.x", "args.y", "error", ""])
def test_many_wildcards_take_no_longer_than_a_few(qualifier):
    make_letter(
        task="a" * 255,
        queue="a" * 255,
        worker="a" * 255,
        error="a" * 2_000,
        # The pattern's end is there, on another line.
        arguments_text="".join(f"\nx={'a' * 480}\n" for _ in range(7)) + "\ny=aab\n",
    )
    pattern = "*a" * 30 + "*b"
    began = time.monotonic()

    found = search.count(q(f"{qualifier}:{pattern}" if qualifier else pattern))

    assert time.monotonic() - began < 1
    assert found == (1 if qualifier == "" else 0)


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("a*b*c", "abc", True),
        ("a*b*c", "a-b-b-c-c", True),
        ("a*b*c", "acb", False),
        ("*ab*ab*", "xabyabz", True),
        ("*ab*ab*", "xab", False),
        ("a*aa*a", "aaa", False),
        ("a*aa*a", "aaaa", True),
    ],
)
def test_wildcards_mean_the_same_on_both_databases(pattern, text, matches):
    make_letter(task="t", queue=text, worker=text, arguments_text=f"\nx={text}\n")

    assert search.count(q(f"queue:{pattern}")) == matches
    assert search.count(q(f"worker:{pattern}")) == matches
    assert search.count(q(f"args.x:{pattern}")) == matches


def test_find_does_not_choose_between_two():
    for last in ("1", "2"):
        make_letter(uuid=uuid.UUID("abcd" + "0" * 27 + last))

    assert search.find("abcd") is None


def test_neighbours_in_a_search():
    rows = many(5)
    ordered = list(search.letters(q("")))

    middle = search.neighbours(ordered[2], q(""))
    newest = search.neighbours(ordered[0], q(""))
    oldest = search.neighbours(ordered[4], q(""))

    assert (middle.newer, middle.older, middle.number, middle.total) == (ordered[1], ordered[3], 3, len(rows))
    assert (newest.newer, newest.number) == (None, 1)
    assert (oldest.older, oldest.number) == (None, 5)


def test_siblings_are_the_other_letters_of_a_root():
    first, second = make_letter(root_id="r", died_at=minutes(2)), make_letter(root_id="r", state="resolved")
    make_letter(root_id="other")
    alone = make_letter(root_id="")

    assert search.siblings(second) == [first]
    assert search.siblings(first) == [second]
    assert search.siblings(alone) == []


def test_a_timeline_counts_by_reason_and_what_has_gone_since(letters):
    timeline = search.timeline(q("since:1h until:now"), now=NOW)

    assert timeline.width_seconds == 120
    assert sum(timeline.reasons[Reason.FAILED]) == 1
    assert sum(timeline.reasons[Reason.TIMED_OUT]) == 1  # 90 minutes ago: beside the selection
    assert sum(timeline.gone) == 3
    assert set(timeline.reasons) == {
        Reason.FAILED,
        Reason.RETRIES_EXHAUSTED,
        Reason.TIMED_OUT,
        Reason.MALFORMED,
    }
    card = [number for number, count in enumerate(timeline.reasons[Reason.RETRIES_EXHAUSTED]) if count]
    start = timeline.start + timedelta(seconds=card[0] * timeline.width_seconds)
    assert start <= minutes(30) < start + timedelta(seconds=timeline.width_seconds)
    assert timeline.start <= NOW - timedelta(hours=3)
    assert timeline.end > NOW


def test_a_timeline_obeys_the_other_terms(letters):
    timeline = search.timeline(q("queue:pay"), now=NOW)

    assert {reason: sum(series) for reason, series in timeline.reasons.items()} == {
        Reason.RETRIES_EXHAUSTED: 1
    }
    assert sum(timeline.gone) == 0


@pytest.mark.parametrize(
    ("text", "gone"), [("", 3), ("state:any", 0), ("state:purged", 0), ("state:dead,purged", 2)]
)
def test_what_has_gone_is_shown_beside_what_is_dead(letters, text, gone):
    assert sum(search.timeline(q(text), now=NOW).gone) == gone


@pytest.mark.parametrize(
    "text",
    ["", "since:1s", "since:90s", "since:30m", "since:2h", "since:7d", "since:365d", "since:1970-01-01",
     "until:2199-12-30", "since:2199-12-30", "since:2025-01-01 until:2025-01-01", "since:00:30 until:03:12"],
)  # fmt: skip
@pytest.mark.parametrize("has_letters", [True, False])
def test_a_timeline_has_about_a_hundred_buckets_of_a_width_with_a_name(text, has_letters):
    if has_letters:
        make_letter(died_at=NOW - timedelta(days=400))
        make_letter(died_at=NOW)

    timeline = search.timeline(q(text), now=NOW)

    assert 1 <= len(timeline.gone) <= 102
    assert all(len(series) == len(timeline.gone) for series in timeline.reasons.values())
    assert timeline.width_seconds >= 1
    assert timeline.start < timeline.end


def test_the_period_of_a_search_without_times_begins_with_its_oldest_letter(letters):
    assert search.period(q(""), now=NOW) == (minutes(120), NOW)
    assert search.period(q("queue:pay"), now=NOW) == (minutes(30), NOW)
    assert search.period(q("since:1h until:10m"), now=NOW) == (minutes(60), minutes(10))
    assert search.period(q("queue:nosuch"), now=NOW) == (NOW - timedelta(hours=1), NOW)


@pytest.mark.parametrize(
    ("call", "queries"),
    [
        (lambda: search.page(q("")).letters, 2),
        (lambda: search.page(q("state:any")).letters, 5),
        (lambda: search.page(q("task:send*")).letters, 3),
        (lambda: search.count(q("queue:critical")), 1),
        (lambda: search.groups(q("since:1h")), 4),
        (lambda: search.groups(q("refused since:1h")), 4),
        (lambda: search.group_states(q("")), 1),
        (lambda: search.timeline(q("since:1h"), now=NOW), 2),
        (lambda: search.breakdown(search.letters(q(""))), 1),
        (lambda: search.find("nosuch-id"), 2),
    ],
)
@pytest.mark.parametrize("number", [1, 12])
def test_the_number_of_queries_does_not_depend_on_the_number_of_rows(
    call, queries, number, django_assert_num_queries
):
    for minute in range(number):
        make_letter(died_at=minutes(minute))

    with django_assert_num_queries(queries):
        call()


def test_the_rows_of_a_page_show_all_their_columns_without_another_query(django_assert_num_queries):
    for minute in range(4):
        make_letter(died_at=minutes(minute))

    with django_assert_num_queries(2):
        for letter in search.page(q("")).letters:
            assert letter.error
            assert letter.task
            assert letter.arguments_preview
            assert letter.group.state
