"""The search language: ``task:send_receipt reason:failed,timed_out -queue:low since:2h "timed out"``.

A term is a qualifier with values, or free text. All terms hold at once; a comma means either,
``-`` before a term means not, ``*`` stands for anything, quotes keep blanks together, and a
backslash before ``"``, ``*``, ``,`` or ``\\`` takes it literally. Times are UTC.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from jobs.core.cleaning import clean_name
from jobs.core.moments import MomentError, parse_moment
from jobs.core.words import LetterState, Reason
from jobs.errors import QueryError

# A longer one is no search; a link of that length breaks in proxies.
MAX_LENGTH = 2_000
MAX_TERMS = 40
# SQLite takes 250,000 parameters, but no page shows more values than this.
MAX_VALUES = 200

# What each qualifier means, as the help under the search box says it, with an example value.
QUALIFIERS: dict[str, tuple[str, str]] = {
    "task": ("the task's name, or its last part", "send_receipt"),
    "queue": ("the queue it was taken from", "critical"),
    "reason": ("why it died", "retries_exhausted"),
    "error": ("a part of the error's type or message", "ConnectionRefusedError"),
    "group": ("the failure group's number, or its fingerprint", "17"),
    "state": ("dead, replaying, resolved, purged or any; dead when not given", "any"),
    "since": ("died at or after this time", "2h"),
    "until": ("died before this time", "03:12"),
    "worker": ("the worker it died on", "celery@web-1"),
    "id": ("the letter's id or its beginning, or the job's id", "7c1f9a2e"),
    "args.": ("an argument", "args.order_id:48213"),
}
# Only one of each makes sense: two would contradict each other or say the same.
_TIMES = frozenset({"since", "until"})
SINGLE_QUALIFIERS = _TIMES | {"state"}
ANY_STATE = "any"

_QUALIFIER = re.compile(r"([A-Za-z_][\w.\-]*):")
_ESCAPABLE = '"\\*,'
_PLAIN_VALUE = re.compile(r"[^\s\"\\*,]+")


class QuerySyntaxError(QueryError):
    """A search that cannot be read.

    The message says which word, where, and what was probably meant; ``suggestion`` is the whole
    search put right, or empty; ``position`` is where the word begins, in characters from 0.
    """

    def __init__(self, message: str, suggestion: str = "", *, position: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.suggestion = suggestion
        self.position = position


# A value between its wildcards: ("shop.", "") is ``shop.*``; one piece has no wildcard.
Pattern = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Term:
    """One term. ``qualifier`` is empty for free text, "args.order_id" for an argument.

    ``values`` are the alternatives without quotes and backslashes; ``patterns`` are the same,
    split at their wildcards. ``text`` is the term as typed.
    """

    qualifier: str
    values: tuple[str, ...]
    negated: bool
    text: str
    patterns: tuple[Pattern, ...] = ()

    @property
    def canonical(self) -> str:
        """The term written the one way that parses back to it."""
        sign = "-" if self.negated else ""
        if not self.qualifier:
            return sign + quote_pattern(self.patterns[0], starts_term=True)
        return f"{sign}{self.qualifier}:{','.join(quote_pattern(p) for p in self.patterns)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A search that was read, in whichever language. ``since`` is included, ``until`` is not."""

    terms: tuple[Term, ...]
    now: datetime
    since: datetime | None = None
    until: datetime | None = None

    @property
    def text(self) -> str:
        """The search written the one way that parses back to it at the same moment."""
        return " ".join(term.canonical for term in self.terms)

    def without(self, term: Term) -> str:
        """Return the search without ``term``."""
        return " ".join(t.canonical for t in self.terms if t.canonical != term.canonical)

    def _with(self, added: tuple[Term, ...]) -> str:
        """Return the search with further terms; one of SINGLE_QUALIFIERS takes the place of its like."""
        replaced = {term.qualifier for term in added} & SINGLE_QUALIFIERS
        known = {term.canonical for term in added}
        kept = [t for t in self.terms if t.qualifier not in replaced and t.canonical not in known]
        return " ".join(term.canonical for term in (*kept, *added))


@dataclass(frozen=True, slots=True, kw_only=True)
class Query(Search):
    """A search for dead letters."""

    states: frozenset[LetterState]

    def with_term(self, text: str) -> str:
        """Return the search with the terms in ``text`` as well; since, until and state are replaced.

        Raises:
            QuerySyntaxError: when ``text`` cannot be read.
        """
        return self._with(parse(text, now=self.now).terms)

    def frozen_text(self) -> str:
        """Return the search with since and until absolute, so that it means the same at any time."""
        moments = {"since": self.since, "until": self.until}
        return " ".join(
            f"{term.qualifier}:{iso(moment)}"
            if (moment := moments.get(term.qualifier)) is not None
            else term.canonical
            for term in self.terms
        )

    def of(self, qualifier: str) -> tuple[Term, ...]:
        """Return the terms of one qualifier; "" for free text, "args." for all arguments."""
        if qualifier == "args.":
            return tuple(term for term in self.terms if term.qualifier.startswith("args."))
        return tuple(term for term in self.terms if term.qualifier == qualifier)


def iso(moment: datetime) -> str:
    """Write a UTC moment so that ``since:`` reads back the same."""
    return moment.isoformat().replace("+00:00", "Z")


def quote(value: str, *, starts_term: bool = False) -> str:
    """Write any text as one literal value: links that filter by a task's name need it.

    ``starts_term`` is for free text, where a leading ``-`` or ``word:`` would mean something.
    """
    return quote_pattern((value,), starts_term=starts_term)


def quote_pattern(pattern: Pattern, *, starts_term: bool = False) -> str:
    """Write a pattern as one value."""
    plain = all(not piece or _PLAIN_VALUE.fullmatch(piece) for piece in pattern) and any(pattern)
    text = "*".join(pattern)
    if pattern == ("", ""):
        return "*"
    if plain and not (starts_term and (text.startswith("-") or _QUALIFIER.match(text))):
        return text
    escaped = ("".join(f"\\{c}" if c in '"\\*' else c for c in piece) for piece in pattern)
    return f'"{"*".join(escaped)}"'


def parse(text: str, *, now: datetime) -> Query:
    """Read a search.

    Raises:
        QuerySyntaxError: naming the word, where it is, and what was probably meant.
    """
    search = read_search(text, language=_LETTERS, now=now)
    return Query(
        terms=search.terms, now=now, since=search.since, until=search.until, states=_states(search.terms)
    )


def read_search(text: str, *, language: Language, now: datetime) -> Search:
    """Read what the search languages share: words, quotes, wildcards, times and limits.

    Raises:
        QuerySyntaxError: naming the word, where it is, and what was probably meant.
    """
    if len(text) > MAX_LENGTH:
        raise QuerySyntaxError(
            f"The search has {len(text):,} characters, at most {MAX_LENGTH:,} are read. Use fewer words."
        )
    # Stored names were cleaned in the same way, so a pasted one still matches.
    text = "".join(" " if c in "\t\n\v\f\r" else clean_name(c) for c in text)
    words = list(_split(text))
    if len(words) > MAX_TERMS:
        raise QuerySyntaxError(
            f"The search has {len(words)} words, at most {MAX_TERMS} are read. {language.advice}"
        )
    terms = tuple(_read_term(word, text, language) for word in words)
    _refuse_repeated(terms, words, text)
    since, until = _read_moments(terms, words, text, now)
    return Search(terms=terms, now=now, since=since, until=until)


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a search; ``start`` is where it begins, in characters from 0."""

    number: int
    start: int
    text: str

    def error(self, message: str, *, whole: str, instead: str | None = None) -> QuerySyntaxError:
        """Build the error for this word; ``instead`` is what the suggestion has in its place."""
        suggestion = ""
        if instead is not None:
            suggestion = f"{whole[: self.start]}{instead}{whole[self.start + len(self.text) :]}".strip()
        return QuerySyntaxError(f"Word {self.number}: {message}", suggestion, position=self.start)


@dataclass(frozen=True, slots=True)
class Language:
    """What tells the search for one kind of thing from the others."""

    # (as typed, value, word, negated, whole search) → the qualifier's name. Raises when there is none.
    qualifier: Callable[[str, str, Word, bool, str], str]
    # A qualifier's name → a value to show.
    example: Callable[[str], str]
    # (term, word, whole search) → the term. Raises when the qualifier cannot have its values.
    check: Callable[[Term, Word, str], Term]
    # What to do with too many words.
    advice: str


def _split(text: str) -> Iterator[Word]:
    """Yield the words: separated by blanks outside quotes."""
    position, number = 0, 0
    while position < len(text):
        if text[position].isspace():
            position += 1
            continue
        start, quoted, number = position, False, number + 1
        opened = start
        while position < len(text) and (quoted or not text[position].isspace()):
            if text[position] == "\\" and text[position + 1 : position + 2] in tuple(_ESCAPABLE):
                position += 1
            elif text[position] == '"':
                quoted, opened = not quoted, position
            position += 1
        if quoted:
            raise QuerySyntaxError(
                f"Word {number}: the quote at character {opened + 1} is never closed. "
                f'Close it with ", or write \\" for the sign itself.',
                f'{_without_odd_backslash(text.rstrip())}"',
                position=opened,
            )
        yield Word(number, start, text[start:position])


def _without_odd_backslash(text: str) -> str:
    """Return text to which a quote can be added that no backslash takes literally."""
    backslashes = len(text) - len(text.rstrip("\\"))
    return text[:-1] if backslashes % 2 else text


def _read_term(word: Word, whole: str, language: Language) -> Term:
    negated = len(word.text) > 1 and word.text.startswith("-")
    rest = word.text[1:] if negated else word.text
    match = _QUALIFIER.match(rest)
    value = rest if match is None else rest[match.end() :]
    qualifier = "" if match is None else language.qualifier(match[1], value, word, negated, whole)
    if not value:
        raise word.error(
            f"`{qualifier}:` needs a value right after the colon, for instance "
            f"{qualifier}:{language.example(qualifier)}.",
            whole=whole,
        )
    patterns = tuple(_patterns(value, separated=bool(qualifier)))
    if len(patterns) > MAX_VALUES:
        raise word.error(
            f"`{qualifier}:` has {len(patterns)} values, at most {MAX_VALUES} are read.", whole=whole
        )
    term = Term(qualifier, tuple(map(_shown, patterns)), negated, word.text, patterns)
    if qualifier in _TIMES:
        _check_time(term, word, whole)
    return language.check(term, word, whole)


def _check_time(term: Term, word: Word, whole: str) -> None:
    if term.negated:
        other = "until" if term.qualifier == "since" else "since"
        raise word.error(
            f"`-{term.qualifier}:` cannot be: use `{other}:` for the other side.",
            whole=whole,
            instead=f"{other}:{term.text.partition(':')[2]}",
        )
    if len(term.values) > 1:
        raise word.error(f"`{term.qualifier}:` takes one time, not {len(term.values)}.", whole=whole)


def _example(qualifier: str) -> str:
    if qualifier.startswith("args."):
        return QUALIFIERS["args."][1].partition(":")[2]
    return QUALIFIERS[qualifier][1]


def _known_qualifier(name: str, value: str, word: Word, negated: bool, whole: str) -> str:
    lowered = name.lower()
    if lowered in QUALIFIERS and lowered != "args.":
        return lowered
    head, dot, path = name.partition(".")
    if dot and path and head.lower() == "args":
        return f"args.{path}"
    sign = "-" if negated else ""
    if lowered in {"args", "args.", "arg", "kwargs"}:
        raise word.error(
            f"`{name}:` needs the argument's name, for instance args.order_id:48213.", whole=whole
        )
    if head.lower() in {"arg", "kwargs"} and path:
        near = f"args.{path}"
    else:
        close = difflib.get_close_matches(lowered, [q for q in QUALIFIERS if q != "args."], n=1, cutoff=0.6)
        near = close[0] if close else ""
    if near:
        raise word.error(
            f"`{name}:` is not a qualifier. Did you mean `{near}:`?",
            whole=whole,
            instead=f"{sign}{near}:{value}",
        )
    literal = quote(f"{name}:{value}", starts_term=True)
    raise word.error(
        f"`{name}:` is not a qualifier. Qualifiers are {', '.join(QUALIFIERS)}<name>. "
        f"To search for the text itself, put it in quotes: {literal}",
        whole=whole,
        instead=f"{sign}{literal}",
    )


def _patterns(text: str, *, separated: bool) -> Iterator[Pattern]:
    """Yield the alternatives of a value, each split at its wildcards."""
    pieces: list[str] = []
    piece, quoted, position = "", False, 0
    while position < len(text):
        character = text[position]
        following = text[position + 1 : position + 2]
        if character == "\\" and following and following in _ESCAPABLE:
            piece += following
            position += 1
        elif character == '"':
            quoted = not quoted
        elif character == "*":
            # Two stars in a row are one.
            if piece or not pieces:
                pieces.append(piece)
            piece = ""
        elif character == "," and separated and not quoted:
            yield (*pieces, piece)
            pieces, piece = [], ""
        else:
            piece += character
        position += 1
    yield (*pieces, piece)


def _shown(pattern: Pattern) -> str:
    return "*".join(pattern)


def _check_values(term: Term, word: Word, whole: str) -> Term:
    """Refuse values that the qualifier cannot have; expand wildcards over closed lists."""
    if not term.qualifier and not any(term.patterns[0]):
        raise word.error(f"{term.text} matches everything. Leave it out.", whole=whole, instead="")
    if term.qualifier == "reason":
        return expand(term, [r.value for r in Reason], word, whole)
    if term.qualifier == "state":
        return expand(term, [*(s.value for s in LetterState), ANY_STATE], word, whole)
    if term.qualifier == "group":
        for value in term.values:
            if not re.fullmatch(r"\d{1,9}|[0-9a-f]{10,40}", value):
                raise word.error(
                    f"`group:{value}` is neither a group's number nor 10 to 40 characters of its "
                    "fingerprint. Open the group and copy its link.",
                    whole=whole,
                )
    if term.qualifier == "id":
        for pattern in term.patterns:
            if len(pattern) > 1 or len(pattern[0]) < 4:
                raise word.error(
                    f"`id:{_shown(pattern)}` must be a job's whole id, or at least the first 4 characters "
                    "of a letter's id, without `*`.",
                    whole=whole,
                )
    return term


def expand(term: Term, choices: list[str], word: Word, whole: str) -> Term:
    """Return the term with those of the choices that its values mean; raise for a value that means none."""
    found: list[str] = []
    for pattern in term.patterns:
        typed = _shown(pattern)
        normal = tuple(re.sub(r"[\s\-]+", "_", piece.strip().lower()) for piece in pattern)
        matches = [c for c in choices if matches_pattern(normal, c) and (len(pattern) == 1 or c != ANY_STATE)]
        if not matches:
            close = difflib.get_close_matches("".join(normal), choices, n=1, cutoff=0.5)
            hint = f"Did you mean `{term.qualifier}:{close[0]}`?" if close else f"Use {', '.join(choices)}."
            sign = "-" if term.negated else ""
            others = [c if c != typed else close[0] for c in term.values] if close else []
            raise word.error(
                f"`{typed}` is not {_a(term.qualifier)}. {hint}",
                whole=whole,
                instead=f"{sign}{term.qualifier}:{','.join(others)}" if close else None,
            )
        found += [m for m in matches if m not in found]
    if ANY_STATE in found and len(found) > 1:
        found = [ANY_STATE]
    return dataclasses.replace(term, values=tuple(found), patterns=tuple((value,) for value in found))


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def matches_pattern(pattern: Pattern, text: str) -> bool:
    """Say whether ``text`` is what the pattern describes, case counted."""
    if len(pattern) == 1:
        return pattern[0] == text
    return re.fullmatch(pattern_regex(pattern), text) is not None


def pattern_regex(pattern: Pattern, *, is_atomic: bool = True) -> str:
    """Return the pattern as a regular expression for one line.

    Each piece between wildcards is taken where it comes first, and never looked for again: Python
    would try every way to share a line between many wildcards. PostgreSQL does not, and does not
    know the group that says so.
    """
    pieces = [re.escape(piece) for piece in pattern]
    if not is_atomic or len(pieces) < 3:
        return "[^\n]*".join(pieces)
    middle = "".join(f"(?>[^\n]*?{piece})" for piece in pieces[1:-1])
    return f"{pieces[0]}{middle}[^\n]*{pieces[-1]}"


def _refuse_repeated(terms: Iterable[Term], words: Iterable[Word], whole: str) -> None:
    seen: set[str] = set()
    for term, word in zip(terms, words, strict=True):
        if term.qualifier in SINGLE_QUALIFIERS and not term.negated:
            if term.qualifier in seen:
                advice = "Write state:dead,purged for either." if term.qualifier == "state" else "Keep one."
                raise word.error(f"`{term.qualifier}:` is given twice. {advice}", whole=whole, instead="")
            seen.add(term.qualifier)


def _read_moments(
    terms: tuple[Term, ...], words: list[Word], whole: str, now: datetime
) -> tuple[datetime | None, datetime | None]:
    since = until = None
    for name in ("since", "until"):
        for term, word in zip(terms, words, strict=True):
            if term.qualifier != name:
                continue
            try:
                moment = parse_moment(term.values[0], now=now, is_end=name == "until", after=since)
            except MomentError as error:
                raise word.error(f"`{name}:{term.values[0]}` {error}", whole=whole) from None
            if name == "since":
                since = moment
            else:
                until = moment
            if since is not None and until is not None and until <= since:
                raise word.error(
                    f"`until:` is {_told(until)}, not after `since:`, {_told(since)}."
                    " Nothing can match: swap them.",
                    whole=whole,
                )
    return since, until


def _told(moment: datetime) -> str:
    """Write a moment for a message: nobody types or reads microseconds."""
    return iso(moment.replace(microsecond=0))


def _states(terms: Iterable[Term]) -> frozenset[LetterState]:
    every = frozenset(LetterState)
    states, positive = every, False
    for term in terms:
        if term.qualifier == "state":
            named = every if ANY_STATE in term.values else frozenset(map(LetterState, term.values))
            states &= every - named if term.negated else named
            positive = True
    return states if positive else frozenset({LetterState.DEAD})


_LETTERS = Language(
    qualifier=_known_qualifier,
    example=_example,
    check=_check_values,
    advice="Put a sentence in quotes.",
)
