"""Total functions behind the letter page: whatever a message holds, they answer and hide nothing behind a control."""

from __future__ import annotations

import json
import unicodedata
from datetime import timedelta

import pytest
from django.utils.safestring import SafeString
from hypothesis import given
from hypothesis import strategies as st

from console.presenters import argument_changes, json_view, letter_story, masks, plain, traceback_view
from console.presenters.argument_changes import PLACEHOLDER
from jobs.core.masking import MASKED
from jobs.core.words import Reason
from jobs.models import DeadLetter, Death, LetterMessage
from tests.factories import NOW

ANY_TEXT = st.text(st.characters(), max_size=80)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4),
    max_leaves=20,
)


@given(ANY_TEXT)
def test_what_is_made_visible_has_no_control_and_no_direction_mark(text: str) -> None:
    shown = plain.visible(text, keep="")

    assert all(unicodedata.category(c) not in {"Cc", "Cs"} for c in shown)
    assert not set(shown) & set(
        "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029"
    )
    shown.encode()


@given(st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S", "Zs"]), max_size=80))
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert plain.visible(text) == text


@given(ANY_JSON)
def test_rendered_json_is_escaped_and_reads_back(value: object) -> None:
    view = json_view.render(value, masked_html=SafeString("MASK"))

    text = "".join(token.text for token in json_view.tokens(value))
    assert "<script" not in view.html
    if not view.is_cut:
        # Escapes for direction marks and the like are JSON's own, but for those below U+0100.
        assert json.loads(text.replace("\\x", "\\u00")) == value or "\\x" in json.dumps(value)


def test_masked_values_are_boxes_and_long_ones_are_cut() -> None:
    view = json_view.render({"token": MASKED, "big": "x" * 5_000}, masked_html=SafeString("<b>box</b>"))

    assert "<b>box</b>" in view.html
    assert view.has_masked
    assert view.is_cut
    assert "3,000 characters more" in view.html


def test_a_long_list_is_cut_at_the_limit() -> None:
    view = json_view.render(list(range(100_000)))

    assert view.is_cut
    assert len(view.html) < 200_000


@pytest.mark.parametrize(
    "value",
    [10**5_000, float("inf"), float("nan"), b"bytes", object()],
    ids=["huge", "inf", "nan", "bytes", "object"],
)
def test_a_value_that_is_no_json_is_shown_all_the_same(value: object) -> None:
    assert json_view.render([value]).html


@given(st.lists(ANY_JSON, max_size=3), st.dictionaries(ANY_TEXT, ANY_JSON, max_size=4))
def test_arguments_come_out_of_the_editor_as_they_went_in(args: list, kwargs: dict) -> None:
    """Masked or not: what nobody edits is sent as it was."""
    kwargs = {**kwargs, "password": {"deep": args}, "Card": "hunter2"}
    masked_args, masked_kwargs = masks.masked_args(args, None), masks.masked_kwargs(kwargs)

    read_args = argument_changes.read_editor(
        argument_changes.editor_text(masked_args), name="args", original=args, masked=masked_args
    )
    read_kwargs = argument_changes.read_editor(
        argument_changes.editor_text(masked_kwargs), name="kwargs", original=kwargs, masked=masked_kwargs
    )

    assert (read_args, read_kwargs) == (args, kwargs)
    assert "hunter2" not in argument_changes.editor_text(masked_kwargs)
    assert not argument_changes.changes(
        kwargs, read_kwargs, masked_before=masked_kwargs, masked_after=masks.masked_kwargs(read_kwargs)
    )


def test_a_text_that_reads_like_the_placeholder_is_kept() -> None:
    original = {"note": PLACEHOLDER}

    read = argument_changes.read_editor(
        json.dumps(original), name="kwargs", original=original, masked=masks.masked_kwargs(original)
    )

    assert read == original


@pytest.mark.parametrize(("before", "after"), [(1, True), (1, 1.0), (0, False), ("1", 1), (None, 0)])
def test_values_that_python_takes_for_equal_are_changes(before: object, after: object) -> None:
    changes = argument_changes.changes(
        {"a": before}, {"a": after}, masked_before={"a": before}, masked_after={"a": after}
    )

    assert [(change.kind, change.path) for change in changes] == [("changed", "a")]


@given(st.text(max_size=400))
def test_any_text_is_presented_as_a_traceback(text: str) -> None:
    view = traceback_view.present(text)

    assert (view is None) == (not text.strip())


def test_a_recursion_of_a_thousand_frames_is_cut_in_the_middle() -> None:
    frames = "".join(f'  File "/app/shop/a.py", line {n}, in f\n    f()\n' for n in range(1_000))

    view = traceback_view.present(f"Traceback (most recent call last):\n{frames}RecursionError: too deep")

    assert view is not None
    assert sum(len(section.frames) for section in view.sections) == traceback_view.FRAME_LIMIT
    assert view.left_out_frames > 0
    assert view.sections[-1].frames[-1].line == 999


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_its_sentence(reason: Reason) -> None:
    letter = DeadLetter(reason=reason, task="shop.tasks.charge", state="dead", state_changed_at=NOW)
    letter.message = LetterMessage(headers={})
    death = Death(reason=reason, died_at=NOW, worker="celery@1", error_type="a.B", error="boom", details={})

    (story,) = letter_story.what_happened(letter, [death], [], now=NOW)

    assert story.endswith("It will not run again by itself.")
    assert "at 03:12:00" in story
    notice = letter_story.notice(letter, [death], [], is_known_to_workers=True, now=NOW)
    assert notice.headline.endswith(".")
    assert notice.level in {"amber", "blue"}


def test_a_death_of_another_day_has_its_date() -> None:
    assert letter_story.when(NOW, NOW + timedelta(days=1)) == "on 12 Nov at 03:12"


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (1, "first"),
        (2, "second"),
        (3, "third"),
        (4, "4th"),
        (11, "11th"),
        (21, "21st"),
        (22, "22nd"),
        (113, "113th"),
    ],
)
def test_ordinals(number: int, words: str) -> None:
    assert letter_story.ordinal(number) == words
