"""The editor of one letter's arguments: what was, what was typed, and the difference."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from console.presenters import argument_changes, masks
from console.presenters.argument_changes import ArgumentsRefused, Change
from console.presenters.letter_page import TaskKnowledge
from jobs.core import replay
from jobs.core.arguments import Arguments


@dataclass(frozen=True, slots=True)
class Typed:
    """What stands in the editors, and their mistakes."""

    args: str
    kwargs: str
    args_error: str = ""
    kwargs_error: str = ""

    @property
    def digest(self) -> str:
        """A fingerprint of the texts: what was looked at is what is sent."""
        text = f"{len(self.args)}:{self.args}{self.kwargs}"
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def has_masked(self) -> bool:
        """Whether a placeholder stands for a masked value."""
        return argument_changes.PLACEHOLDER in self.args + self.kwargs


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference to the message, and why a worker would refuse it."""

    changes: list[Change]
    digest: str
    mismatch: str

    @property
    def is_full(self) -> bool:
        """Whether there may be more changes than are listed."""
        return len(self.changes) >= argument_changes.CHANGE_LIMIT


@dataclass(frozen=True, slots=True)
class Original:
    """The arguments in the message, and the task's parameters as far as a worker told them."""

    args: list[Any]
    kwargs: dict[str, Any]
    parameters: Mapping[str, Any] | None
    is_checked: bool
    # The names at the letter's death, which tell what is masked as well.
    names: list[str] | None = None

    @classmethod
    def of(cls, content: Arguments, knowledge: TaskKnowledge, names: list[str] | None) -> Original:
        """Take them from a body that was read."""
        return cls(
            args=list(content.args),
            kwargs=dict(content.kwargs),
            parameters=knowledge.parameters,
            is_checked=bool(knowledge.is_known) and knowledge.parameters is not None,
            names=names,
        )

    @property
    def placeholder(self) -> str:
        """What stands for a masked value."""
        return argument_changes.PLACEHOLDER

    @property
    def signature(self) -> str:
        """The parameters in one line: "order_id, amount, capture=…"."""
        if self.parameters is None:
            return ""
        names = [str(name) for name in self.parameters.get("names", [])]
        required = int(self.parameters.get("required", len(names)))
        parts = [name if index < required else f"{name}=…" for index, name in enumerate(names)]
        if self.parameters.get("var_args"):
            parts.append("*args")
        needed = set(self.parameters.get("kwonly_required", []))
        parts += [f"{name}" if name in needed else f"{name}=…" for name in self.parameters.get("kwonly", [])]
        if self.parameters.get("var_kwargs"):
            parts.append("**kwargs")
        return ", ".join(parts)

    def typed(self) -> Typed:
        """Return the editors' texts before anybody typed."""
        return Typed(
            args=argument_changes.editor_text(masks.masked_args(self.args, self.parameters, self.names)),
            kwargs=argument_changes.editor_text(masks.masked_kwargs(self.kwargs)),
        )

    def read(self, typed: Typed) -> tuple[dict[str, Any] | None, Typed]:
        """Read both editors; every mistake is told at once, and then there are no values."""
        editors = (
            ("args", typed.args, self.args, masks.masked_args(self.args, self.parameters, self.names)),
            ("kwargs", typed.kwargs, self.kwargs, masks.masked_kwargs(self.kwargs)),
        )
        values: dict[str, Any] = {}
        errors = {"args": "", "kwargs": ""}
        for name, text, original, masked in editors:
            try:
                values[name] = argument_changes.read_editor(text, name=name, original=original, masked=masked)
            except ArgumentsRefused as refused:
                errors[name] = str(refused)
        if any(errors.values()):
            return None, Typed(typed.args, typed.kwargs, errors["args"], errors["kwargs"])
        return values, typed

    def compare(self, values: Mapping[str, Any], typed: Typed) -> Comparison:
        """List what would change, and check it against the parameters of an online worker."""
        changes = [
            *argument_changes.changes(
                self.args,
                values["args"],
                masked_before=masks.masked_args(self.args, self.parameters, self.names),
                masked_after=masks.masked_args(values["args"], self.parameters, self.names),
                path="args",
            ),
            *argument_changes.changes(
                self.kwargs,
                values["kwargs"],
                masked_before=masks.masked_kwargs(self.kwargs),
                masked_after=masks.masked_kwargs(values["kwargs"]),
            ),
        ]
        mismatch = ""
        if self.is_checked and self.parameters is not None:
            mismatch = replay.explain_mismatch(self.parameters, values["args"], values["kwargs"])
        return Comparison(changes=changes, digest=typed.digest, mismatch=mismatch)
