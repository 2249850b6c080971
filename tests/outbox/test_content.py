"""A body is made as kombu makes it, byte for byte, and measured."""

from __future__ import annotations

import datetime
import decimal
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu import Connection
from kombu.exceptions import EncodeError

from jobs.errors import PayloadTooLarge
from jobs.outbox.content import check_size, encode

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.dates()
    | st.datetimes(timezones=st.just(datetime.UTC))
    | st.uuids()
    | st.decimals(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
bodies = st.tuples(st.lists(values, max_size=3), st.dictionaries(st.text(), values, max_size=3), st.just({}))


def by_kombu(body: Any, **options: Any) -> tuple[bytes, str, str, dict[str, Any]]:
    """Return what kombu's own producer makes of a body, and the headers it sets."""
    headers: dict[str, Any] = {}
    with Connection("memory://") as connection, connection.Producer() as producer:
        made, content_type, content_encoding = producer._prepare(
            body,
            options.get("serializer"),
            options.get("content_type"),
            options.get("content_encoding"),
            options.get("compression"),
            headers,
        )
    return made.encode("utf-8") if isinstance(made, str) else made, content_type, content_encoding, headers


@given(body=bodies, compression=st.sampled_from([None, "gzip", "bzip2", "lzma", "application/x-gzip"]))
def test_any_body_is_what_kombu_makes_of_it(body, compression) -> None:
    content = encode(body, serializer="json", compression=compression)

    made, content_type, content_encoding, headers = by_kombu(body, serializer="json", compression=compression)
    if compression in ("gzip", "application/x-gzip"):
        # zlib alone: a gzip header would hold the time.
        assert content.body[:4] == made[:4]
    assert content.body == made
    assert (content.content_type, content.content_encoding) == (content_type, content_encoding)
    assert content.compression == headers.get("compression")


@pytest.mark.parametrize(
    ("body", "options"),
    [
        (([1], {"a": "ü"}, {}), {"serializer": "pickle"}),
        (([1], {"a": "ü"}, {}), {"serializer": "yaml"}),
        ("plain text ü", {}),
        (b"bytes \xff", {}),
        ("text", {"serializer": "raw"}),
        ('{"a": "ü"}', {"content_type": "application/json"}),
        ("grün", {"content_type": "text/plain", "content_encoding": "latin-1"}),
        (b"\x00\xff", {"content_type": "application/octet-stream"}),
        (b"\x00\xff" * 100, {"content_type": "application/octet-stream", "compression": "bzip2"}),
    ],
)
def test_other_serializers_and_bodies_are_what_kombu_makes_of_them(body, options) -> None:
    content = encode(body, **options)

    made, content_type, content_encoding, headers = by_kombu(body, **options)
    assert (content.body, content.content_type, content.content_encoding) == (
        made,
        content_type,
        content_encoding,
    )
    assert content.compression == headers.get("compression")


@pytest.mark.parametrize("argument", [object(), {1, 2}, lambda: None])
def test_row_98_an_argument_that_cannot_be_serialised_is_refused_where_it_is_enqueued(argument) -> None:
    with pytest.raises(EncodeError):
        encode(((argument,), {}, {}), serializer="json")


def test_values_with_a_form_of_their_own_are_kept() -> None:
    body = ([uuid.UUID(int=1), decimal.Decimal("1.50"), datetime.date(2026, 11, 12)], {}, {})

    assert b'"__type__": "uuid"' in encode(body, serializer="json").body


def test_a_body_that_is_said_to_be_serialised_and_is_not_is_refused() -> None:
    with pytest.raises(TypeError, match="type dict as application/json: with a content type it has to be"):
        encode({"a": 1}, content_type="application/json")


def test_a_body_above_the_limit_is_refused_with_size_limit_and_advice() -> None:
    with pytest.raises(PayloadTooLarge) as refused:
        check_size(300_000, limit_bytes=262_144, task="shop.report")

    assert str(refused.value) == (
        "Cannot enqueue shop.report: its arguments are 300,000 bytes, and its limit is 262,144"
        " (payload_limit_bytes). Store the data and pass its id; nothing was sent."
    )


@pytest.mark.parametrize(("size", "limit"), [(262_144, 262_144), (0, 0), (10**9, None)])
def test_a_body_at_the_limit_or_without_one_is_taken(size, limit) -> None:
    check_size(size, limit_bytes=limit, task="shop.report")
