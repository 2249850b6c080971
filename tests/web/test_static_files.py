"""Static files as a browser gets them: compressed once, and kept for as long as their address stays."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.contrib.staticfiles import finders
from django.contrib.staticfiles.storage import StaticFilesStorage, staticfiles_storage
from django.http.response import HttpResponseBase
from django.test import Client

from console import static_files
from tests.web.people import viewer

# The end of a request closes old connections.
pytestmark = pytest.mark.django_db

PLOTLY = "plotly/plotly.min.js"
FOR_EVER = "max-age=315360000, public, immutable"


def fetch(address: str, *, encodings: str = "gzip, deflate, br, zstd", **headers: str) -> HttpResponseBase:
    return Client().get(address, headers={"accept-encoding": encodings, **headers})


def content(answer: HttpResponseBase) -> bytes:
    """Return what was sent, as it was sent."""
    sent = answer.getvalue()
    answer.close()
    assert len(sent) == int(answer.headers["Content-Length"])
    return sent


@pytest.fixture
def folder(tmp_path: Path, settings) -> Iterator[Path]:
    """A directory of static files of the test's own, which the finders know."""
    settings.STATICFILES_DIRS = [tmp_path]
    forget: list[Callable[[], None]] = [finders.get_finder.cache_clear, static_files._path_of.cache_clear]
    for each in forget:
        each()
    yield tmp_path
    for each in forget:
        each()


@pytest.mark.parametrize("looks_each_time", [True, False], ids=["as with DEBUG", "as in production"])
def test_plotly_is_sent_compressed_and_kept_for_ever_under_its_address(
    looks_each_time: bool, settings
) -> None:
    settings.WHITENOISE_AUTOREFRESH = looks_each_time
    plain = Path(finders.find(PLOTLY)).read_bytes()

    answer = fetch(staticfiles_storage.url(PLOTLY))

    assert answer.headers["Content-Encoding"] == "gzip"
    assert answer.headers["Cache-Control"] == FOR_EVER
    assert answer.headers["Vary"] == "Accept-Encoding"
    assert answer.headers["Content-Type"] == 'text/javascript; charset="utf-8"'
    sent = content(answer)
    assert gzip.decompress(sent) == plain
    assert len(sent) < len(plain) / 3


def test_a_file_is_compressed_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "page.css").write_text("a { color: red }" * 100)
    calls: list[int] = []
    compress = gzip.compress

    def counted(*arguments: object, **named: object) -> bytes:
        calls.append(1)
        return compress(*arguments, **named)

    monkeypatch.setattr(gzip, "compress", counted)

    assert content(fetch("/static/page.css")) == content(fetch("/static/page.css"))
    assert len(calls) == 1


@pytest.mark.parametrize("encodings", ["", "identity", "br", "deflate"])
def test_who_does_not_read_gzip_gets_the_file_as_it_lies(encodings: str) -> None:
    answer = fetch(staticfiles_storage.url("console/js/app.js"), encodings=encodings)

    assert "Content-Encoding" not in answer.headers
    assert answer.headers["Vary"] == "Accept-Encoding"
    assert content(answer) == Path(finders.find("console/js/app.js")).read_bytes()


def test_a_changed_file_has_another_address_and_is_not_kept_under_the_one_before(folder: Path) -> None:
    file = folder / "page.css"
    file.write_text("a { color: red }")
    before = staticfiles_storage.url("page.css")
    assert fetch(before).headers["Cache-Control"] == FOR_EVER

    file.write_text("a { color: green }")
    after = staticfiles_storage.url("page.css")

    assert after != before
    late = fetch(before)
    assert late.headers["Cache-Control"] == "max-age=60, public"
    assert gzip.decompress(content(late)) == b"a { color: green }"
    assert fetch(after).headers["Cache-Control"] == FOR_EVER


@pytest.mark.parametrize("query", ["", "?v=", "?v=0123456789", "?w={version}", "?v={version}&v=1"])
def test_an_address_that_does_not_name_the_content_is_not_kept_for_ever(query: str) -> None:
    version = staticfiles_storage.url("console/css/base.css").partition("?v=")[2]

    answer = fetch("/static/console/css/base.css" + query.format(version=version))

    assert answer.headers["Cache-Control"] == "max-age=60, public"
    assert answer.headers["Content-Encoding"] == "gzip"


def test_the_same_content_has_the_same_address_on_every_machine(folder: Path) -> None:
    (folder / "one.css").write_text("a {}")
    (folder / "two.css").write_text("a {}")

    # printf 'a {}' | sha256sum
    assert staticfiles_storage.url("one.css") == "/static/one.css?v=9a4487ccbe"
    assert staticfiles_storage.url("two.css") == "/static/two.css?v=9a4487ccbe"


def test_a_file_that_is_gone_or_never_was_has_a_plain_address(folder: Path) -> None:
    (folder / "page.css").write_text("a {}")
    assert staticfiles_storage.url("page.css").startswith("/static/page.css?v=")

    (folder / "page.css").unlink()

    assert staticfiles_storage.url("page.css") == "/static/page.css"
    assert staticfiles_storage.url("never.css") == "/static/never.css"
    assert fetch("/static/never.css").status_code == 404


@pytest.mark.parametrize("name", ["console", "console/", "/console/css/base.css", "../settings.py"])
def test_what_is_the_name_of_no_file_has_the_address_that_django_gives_it(name: str) -> None:
    assert staticfiles_storage.url(name) == StaticFilesStorage().url(name)


@pytest.mark.parametrize("wanted", ["bytes=1000-", "bytes=0-99", "bytes=9999999-"])
def test_no_part_of_a_plain_file_is_sent_to_who_has_the_rest_compressed(wanted: str) -> None:
    address = staticfiles_storage.url("console/js/app.js")

    whole = fetch(address, range=wanted)
    part = fetch(address, encodings="", range="bytes=10-19")

    plain = Path(finders.find("console/js/app.js")).read_bytes()
    assert (whole.status_code, whole.headers["Content-Encoding"]) == (200, "gzip")
    assert gzip.decompress(content(whole)) == plain
    assert (part.status_code, content(part)) == (206, plain[10:20])


def test_what_a_browser_has_is_not_sent_again() -> None:
    address = staticfiles_storage.url("console/js/app.js")
    etag = fetch(address).headers["ETag"]

    answer = fetch(address, **{"if-none-match": etag})

    assert (answer.status_code, answer.getvalue()) == (304, b"")
    # What the answer says takes the place of what the browser remembers.
    assert answer.headers["Cache-Control"] == FOR_EVER
    assert answer.headers["Vary"] == "Accept-Encoding"
    assert "Content-Encoding" not in answer.headers


def test_the_head_of_a_file_is_that_of_its_answer() -> None:
    address = staticfiles_storage.url("console/js/app.js")
    headers = {"accept-encoding": "gzip"}

    answer = Client().head(address, headers=headers)

    assert dict(answer.headers) == dict(fetch(address, encodings="gzip").headers)
    assert answer.getvalue() == b""


def test_what_is_small_already_is_sent_as_it_is(folder: Path) -> None:
    (folder / "point.png").write_bytes(b"\x89PNG" + bytes(1000))

    answer = fetch("/static/point.png")

    assert "Content-Encoding" not in answer.headers
    assert content(answer) == b"\x89PNG" + bytes(1000)


def test_every_static_file_of_a_page_is_compressed_and_kept() -> None:
    page = viewer().get("/").text
    addresses = sorted(
        {each.partition("#")[0] for each in re.findall(r'(?:src|href)="(/static/[^"]+)"', page)}
    )

    found = {address: fetch(address) for address in addresses}

    assert any("plotly.min.js" in each for each in addresses)
    assert any("icons.svg" in each for each in addresses)
    assert any("htmx-2.min.js" in each for each in addresses)
    assert {
        address
        for address, answer in found.items()
        if (answer.headers.get("Content-Encoding"), answer.headers["Cache-Control"]) != ("gzip", FOR_EVER)
    } == set()


def test_pages_are_compressed_and_their_length_is_blurred() -> None:
    client = viewer()
    plain = client.get("/")

    answer = client.get("/", headers={"accept-encoding": "gzip"})

    assert "Content-Encoding" not in plain.headers
    assert "Accept-Encoding" in plain.headers["Vary"]
    assert len(answer.content) < len(plain.content) / 4
    # Bit 3 of the flags: up to 100 random letters in the place of a file's name.
    assert answer.content[3] & 0b1000
