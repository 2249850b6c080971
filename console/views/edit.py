"""Edit and replay one letter: an editor, the difference, and only then the button that sends."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.crypto import constant_time_compare
from django.views.decorators.http import require_http_methods

from console.actors import actor_of
from console.forms.replay import WhyForm
from console.permissions import requires
from console.presenters import arguments_view, confirm_page, letter_page, letter_story
from console.presenters.argument_changes import TEXT_LIMIT
from console.presenters.confirm_page import Frozen
from console.presenters.edit_page import Comparison, Original, Typed
from console.presenters.plain import byte_size
from console.views.letter import find_or_404
from jobs import operations as services
from jobs.core.arguments import Arguments
from jobs.errors import OperationRefused
from jobs.models import DeadLetter
from jobs.operations import Selection


@require_http_methods(["GET", "POST"])
@requires("jobs.view_deadletter")
@requires("jobs.replay_deadletter")
@requires("jobs.edit_deadletter")
def edit(request: HttpRequest, letter_id: uuid.UUID) -> HttpResponse:
    """Show the editor; on POST check what was typed and show the difference, or send it."""
    now = timezone.now()
    letter = find_or_404(letter_id)
    content = arguments_view.read(letter)
    refused = (
        letter_story.refusal(letter, "edit", letter_page.items_of(letter))
        or content.error
        or _too_large(content)
    )
    if refused:
        context = {"letter": letter, "headline": letter_page.headline(letter), "refused": refused, "now": now}
        return render(request, "console/confirm/edit_refused.html", context, status=409)
    knowledge = letter_page.task_knowledge(letter.task, now=now)
    original = Original.of(content, knowledge, letter.parameters)
    page = _Page(request, letter, original, now)
    if request.method == "GET":
        return page.show(page.freeze(), original.typed())
    return _check_or_send(page)


def _too_large(content: Arguments) -> str:
    """Say that the editor does not take so much: it would hold the browser up, and refuse the text."""
    if content.byte_size <= TEXT_LIMIT:
        return ""
    return (
        f"Its arguments have {byte_size(content.byte_size)}, and the editor takes at most {byte_size(TEXT_LIMIT)}."
        " Replay it unedited, or publish the job again from its application."
    )


class _Page:
    """The page with what does not change between its answers."""

    def __init__(self, request: HttpRequest, letter: DeadLetter, original: Original, now: datetime) -> None:
        self.request = request
        self.letter = letter
        self.original = original
        self.now = now

    def freeze(self) -> Frozen:
        """Freeze the letter as it is now."""
        return Frozen(Selection.of_ids([self.letter.uuid], now=self.now), 1)

    def show(
        self,
        frozen: Frozen,
        typed: Typed,
        comparison: Comparison | None = None,
        *,
        form: WhyForm | None = None,
        error: str = "",
        status: int = 200,
    ) -> HttpResponse:
        """Render the editor with what is known of the text in it."""
        context: dict[str, Any] = {
            "letter": self.letter,
            "headline": letter_page.headline(self.letter),
            "original": self.original,
            "typed": typed,
            "comparison": comparison,
            "frozen": confirm_page.write_token(frozen),
            "form": form or WhyForm(),
            "error": error,
            "now": self.now,
        }
        return render(self.request, "console/confirm/edit.html", context, status=status)


def _check_or_send(page: _Page) -> HttpResponse:
    post = page.request.POST
    typed = Typed(post.get("args", "").replace("\r\n", "\n"), post.get("kwargs", "").replace("\r\n", "\n"))
    try:
        frozen = confirm_page.read_token(post.get("frozen", ""))
        if frozen.selection.ids != (str(page.letter.uuid),):
            raise OperationRefused(
                "Cannot send this page: it belongs to another letter. Open the letter again."
            )
    except OperationRefused as refused:
        return page.show(page.freeze(), typed, error=str(refused), status=409)
    values, typed = page.original.read(typed)
    if values is None:
        return page.show(frozen, typed, status=422)
    comparison = page.original.compare(values, typed)
    if comparison.mismatch:
        return page.show(frozen, typed, comparison, status=422)
    if post.get("step") != "send":
        return page.show(frozen, typed, comparison)
    if not constant_time_compare(post.get("checked", ""), comparison.digest):
        error = "The arguments were changed after the difference was shown. Look at it again below."
        return page.show(frozen, typed, comparison, error=error, status=409)
    form = WhyForm(post)
    if not form.is_valid():
        return page.show(frozen, typed, comparison, form=form, status=422)
    try:
        operation = services.start_replay(
            selection=frozen.selection,
            actor=actor_of(page.request),
            why=form.cleaned_data["why"],
            now=page.now,
            # Without a difference the message goes byte for byte.
            edited_arguments=values if comparison.changes else None,
            expected_count=frozen.count,
        )
    except OperationRefused as refused:
        return page.show(frozen, typed, comparison, form=form, error=str(refused), status=409)
    return redirect("console:operation", operation_id=operation.pk)
