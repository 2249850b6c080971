"""Values that nobody needs to see: found by the name of their key, at any depth."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

DEFAULT_KEYS = ("password", "token", "secret", "card", "email")
# Deeper than this a value is masked whole: nothing passes because it is hard to reach.
MAX_DEPTH = 50
# Headers in which Celery repeats the arguments as text, where no key can be found.
ARGUMENT_HEADERS = frozenset({"argsrepr", "kwargsrepr"})


class Masked:
    """Stands where a masked value was. There is one, ``MASKED``; compare with ``is``."""

    _only: Masked | None = None

    def __new__(cls) -> Masked:
        """Return the only one."""
        if cls._only is None:
            cls._only = super().__new__(cls)
        return cls._only

    def __repr__(self) -> str:
        return "•••"

    def __reduce__(self) -> tuple[type[Masked], tuple[()]]:
        return Masked, ()


MASKED: Final = Masked()


def is_masked_key(key: str, keys: Iterable[str] = DEFAULT_KEYS) -> bool:
    """Say whether a key's name contains one of ``keys``, case ignored."""
    return _any_of(tuple(keys)).search(key) is not None


def mask(value: Any, keys: Iterable[str] = DEFAULT_KEYS) -> Any:
    """Return a copy of ``value`` in which what stands under a masked key is ``MASKED``."""
    return _mask(value, _any_of(tuple(keys)), 0)


@lru_cache(maxsize=16)
def _any_of(keys: tuple[str, ...]) -> re.Pattern[str]:
    parts = [re.escape(key) for key in keys if key]
    # Without keys: what matches nothing.
    return re.compile("|".join(parts) if parts else r"(?!)", re.IGNORECASE)


def mask_arguments(
    args: Sequence[Any], *names: Sequence[str] | None, keys: Iterable[str] = DEFAULT_KEYS
) -> list[Any]:
    """Return positional arguments with masks, whole where one of ``names`` calls the place by a masked name.

    Each of ``names`` are a task's parameters as somebody knew them; they may differ during a deploy.
    """
    wanted = tuple(keys)
    masked: list[Any] = mask(list(args), wanted)
    for known in names:
        for place, name in enumerate((known or ())[: len(masked)]):
            if is_masked_key(name, wanted):
                masked[place] = MASKED
    return masked


def mask_headers(headers: Mapping[str, Any], keys: Iterable[str] = DEFAULT_KEYS) -> dict[str, Any]:
    """Return message headers fit to show: masked by key, and without the arguments' text."""
    return {
        name: MASKED if name in ARGUMENT_HEADERS else value
        for name, value in mask(dict(headers), keys).items()
    }


def _mask(value: Any, keys: re.Pattern[str], depth: int) -> Any:
    if isinstance(value, Mapping):
        if depth >= MAX_DEPTH:
            return MASKED
        return {
            key: MASKED if keys.search(str(key)) else _mask(item, keys, depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        if depth >= MAX_DEPTH:
            return MASKED
        return [_mask(item, keys, depth + 1) for item in value]
    return value
