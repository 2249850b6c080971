"""Logged-in clients by role, and what to look for in an answer."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.test import Client

from jobs import roles

HTMX = {"HTTP_HX_REQUEST": "true"}


def make_person(login: str, role: str | None, **fields: Any) -> Any:
    """Make a user with one role, or with none."""
    user = get_user_model().objects.create_user(login, password="a long password", **fields)
    if role is not None:
        user.groups.add(Group.objects.get(name=role))
    return user


def client_of(role: str | None, *, login: str = "") -> Client:
    """Return a client logged in as somebody with ``role``; its ``user`` is that person."""
    client = Client()
    user = make_person(
        login or f"some-{(role or 'nobody').lower()}", role, first_name="Mara", last_name="Lindqvist"
    )
    client.force_login(user)
    client.user = user  # type: ignore[attr-defined]
    return client


def viewer() -> Client:
    """Return a client of a viewer."""
    return client_of(roles.VIEWER)


def operator() -> Client:
    """Return a client of an operator."""
    return client_of(roles.OPERATOR)


def admin() -> Client:
    """Return a client of an admin."""
    return client_of(roles.ADMIN)


class Tags(HTMLParser):
    """Every tag of a page with its attributes, in order, and its visible text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._hidden = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._hidden += tag in {"script", "style"}

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in {"script", "style"}

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.words.append(data)

    @property
    def text(self) -> str:
        """The text on one line."""
        return " ".join("".join(self.words).split())

    def all(self, tag: str, **wanted: str) -> list[dict[str, str | None]]:
        """Return the attributes of each ``tag`` that has all of ``wanted``; ``class_`` is one of its classes."""
        css = wanted.pop("class_", None)
        return [
            attributes
            for name, attributes in self.tags
            if name == tag
            and all(attributes.get(key.replace("_", "-")) == value for key, value in wanted.items())
            and (css is None or css in (attributes.get("class") or "").split())
        ]


def tags(response: Any) -> Tags:
    """Parse the page of a response."""
    return Tags(response.content.decode())


def href(response: Any, text: str) -> str:
    """Return the address of the first link whose text is or contains ``text``."""
    finder = _Links(response.content.decode())
    for words, address in finder.links:
        if text in words:
            return address
    raise AssertionError(f"no link says {text!r}; links: {[words for words, _ in finder.links]}")


class _Links(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[tuple[str, str]] = []
        self._address: str | None = None
        self._words: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            values = dict(attrs)
            self._address, self._words = values.get("href") or "", [values.get("aria-label") or ""]

    def handle_data(self, data: str) -> None:
        if self._address is not None:
            self._words.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag == "a" and self._address is not None:
            self.links.append((" ".join("".join(self._words).split()), self._address))
            self._address = None
