"""Which values are masked: by the name of their key, and for positional arguments by their parameter's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jobs import conf
from jobs.core.masking import DEFAULT_KEYS, MASKED, is_masked_key, mask


def keys() -> tuple[str, ...]:
    """Return every part of a key's name that masks its value: the built-in ones and JOBS_MASKED_KEYS."""
    return (*DEFAULT_KEYS, *conf.current().masked_keys)


def masked_args(args: Sequence[Any], parameters: Mapping[str, Any] | None) -> list[Any]:
    """Mask positional arguments; one whose parameter has a masked name is masked whole."""
    in_use = keys()
    names = list(parameters.get("names", [])) if parameters is not None else []
    masked: list[Any] = mask(list(args), in_use)
    return [
        MASKED if index < len(names) and is_masked_key(str(names[index]), in_use) else value
        for index, value in enumerate(masked)
    ]


def masked_kwargs(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Mask named arguments."""
    masked: dict[str, Any] = mask(dict(kwargs), keys())
    return masked
