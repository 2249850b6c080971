"""Jobs that say how far they are, on the overview."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.urls import reverse

from console.presenters import progress_view
from jobs.core.words import ItemState, LetterState
from jobs.models import JobProgress
from tests.factories import NOW, make_death, make_item, make_letter, make_operation
from tests.web.people import tags, viewer


@pytest.fixture(autouse=True)
def _at_night():
    with time_machine.travel(NOW, tick=False):
        yield


def told(**fields: Any) -> JobProgress:
    """Return the row of a job that has worked for 68 s and told 4 s ago, not saved."""
    values = {
        "task_id": "b04e6d1c",
        "task": "shop.tasks.import_feed",
        "worker": "celery@web-1",
        "done": 340,
        "total": 1000,
        "note": "feed of nordwind",
        "started_at": NOW - timedelta(seconds=72),
        "updated_at": NOW - timedelta(seconds=4),
    }
    return JobProgress(**{**values, **fields})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ("340", "of 1,000", "5 /s", "about 2 min 12 s left")),
        ({"total": None}, ("340", "so far", "5 /s", "")),
        ({"done": 0}, ("0", "of 1,000", "", "")),
        ({"done": 1000}, ("1,000", "of 1,000", "15 /s", "")),
        ({"done": 1200}, ("1,200", "of 1,000", "18 /s", "")),
        ({"done": 34}, ("34", "of 1,000", "30 /min", "about 32 min left")),
        ({"done": 1, "total": 2, "started_at": NOW - timedelta(seconds=1204)}, ("1", "of 2", "3 /h", "about 20 min left")),
        ({"started_at": NOW - timedelta(seconds=5)}, ("340", "of 1,000", "", "")),
        ({"updated_at": NOW - timedelta(seconds=61)}, ("340", "of 1,000", "", "")),
    ],
)  # fmt: skip
def test_a_pace_is_told_in_the_unit_in_which_it_is_a_number_and_only_while_it_is_known(fields, expected):
    line = progress_view.present(told(**fields), now=NOW)

    assert (line.figure, line.of_words, line.pace, line.left) == expected


@pytest.mark.parametrize(
    ("done", "total", "parts", "percent"),
    [
        (340, 1000, [("done", 340), ("rest", 660)], 34),
        (1200, 1000, [("done", 1000), ("rest", 0)], 100),
        (-5, 1000, [("done", 0), ("rest", 1000)], 0),
        (340, None, [], None),
        (0, 0, [], None),
        (3, -1, [], None),
    ],
)
def test_the_bar_never_leaves_its_track(done, total, parts, percent):
    record = told(done=done, total=total)

    assert progress_view.present(record, now=NOW).parts == parts
    assert progress_view.percent(record) == percent


@pytest.mark.django_db
def test_the_overview_shows_who_told_lately():
    told().save()
    told(
        task_id="later", task="shop.tasks.sync_stock", total=None, note="", started_at=NOW, updated_at=NOW
    ).save()

    text = tags(viewer().get("/")).text

    assert "In progress" in text
    assert (
        "shop.tasks.import_feed feed of nordwind 340of 1,000 about 2 min 12 s left5 /s told 4 s ago" in text
    )
    assert "on celery@web-1" in text
    assert text.index("import_feed feed of nordwind") < text.index("sync_stock no note")


@pytest.mark.django_db
def test_nothing_is_said_of_progress_when_nobody_told_lately():
    told(updated_at=NOW - timedelta(minutes=6)).save()

    assert "In progress" not in tags(viewer().get("/")).text


@pytest.mark.django_db
@pytest.mark.parametrize(("state", "is_shown"), [(LetterState.DEAD, False), (LetterState.REPLAYING, True)])
def test_a_job_that_died_is_not_in_progress_and_one_that_is_replayed_is(state, is_shown):
    make_letter(task_id="b04e6d1c", state=state)
    told().save()

    assert ("In progress" in tags(viewer().get("/")).text) is is_shown


@pytest.mark.django_db
def test_what_a_job_tells_of_itself_is_escaped():
    told(note="<img src=x onerror=alert(1)>\u202e", worker="<b>", task="<i>").save()

    html = viewer().get("/").content.decode()

    assert "<img" not in html
    assert "&lt;img src=x" in html
    assert "\u202e" not in html


def letter_text(letter) -> str:
    return tags(viewer().get(reverse("console:letter", args=[letter.uuid]))).text


@pytest.mark.django_db
def test_a_letter_tells_how_far_its_job_was_when_it_died():
    letter = make_letter(task_id="b04e6d1c")
    told().save()

    text = letter_text(letter)

    assert "It died at 340 of 1,000: feed of nordwind As it told itself, last 03:11:56 UTC." in text
    assert "left" not in text.split("As it told itself")[1][:60]


@pytest.mark.django_db
def test_a_letter_that_died_again_tells_of_its_newest_job():
    letter = make_letter(task_id="first", deaths=2)
    make_death(letter, task_id="second", died_at=NOW + timedelta(seconds=1))
    told(task_id="first", done=1).save()
    told(task_id="second").save()

    assert "It died at 340 of 1,000" in letter_text(letter)


@pytest.mark.django_db
def test_a_letter_that_is_being_replayed_tells_how_far_its_replay_is():
    letter = make_letter(task_id="first", state=LetterState.REPLAYING)
    make_item(make_operation(), letter, task_id="second", state=ItemState.SENT)
    told(task_id="first", done=1).save()
    told(task_id="second").save()

    text = letter_text(letter)

    assert "Its replay is at 340 of 1,000: feed of nordwind" in text
    assert "About 2 min 12 s left at 5 /s." in text


@pytest.mark.django_db
def test_a_letter_whose_job_told_nothing_says_nothing():
    told(task_id="another").save()

    assert "It died at 340" not in letter_text(make_letter())
