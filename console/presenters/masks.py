"""Which values are masked: by the name of their key, and for positional arguments by their parameter's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jobs import conf
from jobs.core.masking import DEFAULT_KEYS, mask, mask_arguments


def keys() -> tuple[str, ...]:
    """Return every part of a key's name that masks its value: the built-in ones and JOBS_MASKED_KEYS."""
    return (*DEFAULT_KEYS, *conf.current().masked_keys)


def masked_args(
    args: Sequence[Any], parameters: Mapping[str, Any] | None, names: Sequence[str] | None = None
) -> list[Any]:
    """Mask positional arguments; one whose parameter has a masked name is masked whole.

    ``parameters`` are the task's as a worker tells them now, ``names`` those at the letter's death.
    """
    told = parameters.get("names", []) if parameters is not None else []
    return mask_arguments(args, told, names, keys=keys())


def masked_kwargs(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Mask named arguments."""
    masked: dict[str, Any] = mask(dict(kwargs), keys())
    return masked
