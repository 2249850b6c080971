"""Values that nobody needs to see: found by the name of their key, at any depth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    lowered = key.lower()
    return any(part.lower() in lowered for part in keys if part)


def mask(value: Any, keys: Iterable[str] = DEFAULT_KEYS) -> Any:
    """Return a copy of ``value`` in which what stands under a masked key is ``MASKED``."""
    return _mask(value, tuple(key.lower() for key in keys if key), 0)


def mask_headers(headers: Mapping[str, Any], keys: Iterable[str] = DEFAULT_KEYS) -> dict[str, Any]:
    """Return message headers fit to show: masked by key, and without the arguments' text."""
    return {
        name: MASKED if name in ARGUMENT_HEADERS else value
        for name, value in mask(dict(headers), keys).items()
    }


def _mask(value: Any, keys: tuple[str, ...], depth: int) -> Any:
    if isinstance(value, Mapping):
        if depth >= MAX_DEPTH:
            return MASKED
        return {
            key: MASKED if is_masked_key(str(key), keys) else _mask(item, keys, depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        if depth >= MAX_DEPTH:
            return MASKED
        return [_mask(item, keys, depth + 1) for item in value]
    return value
