"""The rows that tests build are rows that the product could have."""

from __future__ import annotations

import json

import pytest

from tests.factories import make_item, make_letter, make_operation

pytestmark = pytest.mark.django_db


def test_a_made_letter_has_its_message_group_and_one_death():
    letter = make_letter(args=[1], kwargs={"order_id": 7}, queue="mail")

    letter.refresh_from_db()
    letter.full_clean(exclude=["parent_id"])
    assert json.loads(bytes(letter.message.body))[:2] == [[1], {"order_id": 7}]
    assert letter.message.headers["id"] == letter.task_id
    assert letter.group.task == letter.task
    assert [death.died_at for death in letter.death_set.all()] == [letter.died_at]


def test_a_made_item_waits_for_the_outcome_of_its_letter():
    letter = make_letter(state="replaying")

    item = make_item(make_operation(), letter)

    assert (item.state, item.letter) == ("sent", letter)
