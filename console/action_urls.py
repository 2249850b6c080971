"""The pages on which an operator acts: a letter, replays, purges, operations, groups."""

from __future__ import annotations

from django.urls import URLPattern, path

from console.views import confirm, edit, export, groups, letter, operations, outbox

urlpatterns: list[URLPattern] = [
    # What you selected: ?id=<uuid> repeated, or ?q=<search>.
    path("dead-letters/replay/", confirm.replay, name="replay"),
    path("dead-letters/purge/", confirm.purge, name="purge"),
    path("dead-letters/restore/", confirm.restore, name="restore"),
    path("dead-letters/export/", export.export, name="export"),
    path("dead-letters/<uuid:letter_id>/", letter.letter_page, name="letter"),
    path("dead-letters/<uuid:letter_id>/traceback/", letter.raw_traceback, name="letter-traceback"),
    path("dead-letters/<uuid:letter_id>/reveal/", letter.reveal, name="letter-reveal"),
    path("dead-letters/<uuid:letter_id>/note/", letter.note, name="letter-note"),
    path("dead-letters/<uuid:letter_id>/edit/", edit.edit, name="letter-edit"),
    path("groups/<int:group_id>/", groups.group_page, name="group"),
    path("groups/<int:group_id>/<slug:action>/", groups.triage_group, name="group-triage"),
    path("operations/", operations.operation_list, name="operations"),
    path("operations/<int:operation_id>/", operations.operation_page, name="operation"),
    path("operations/<int:operation_id>/pause/", operations.pause, name="operation-pause"),
    path("operations/<int:operation_id>/resume/", operations.resume, name="operation-resume"),
    path("operations/<int:operation_id>/cancel/", operations.cancel, name="operation-cancel"),
    path("operations/<int:operation_id>/continue/", operations.continue_stage, name="operation-continue"),
    path("operations/<int:operation_id>/rate/", operations.set_rate, name="operation-rate"),
    path("operations/<int:operation_id>/note/", operations.note, name="operation-note"),
    path("operations/<int:operation_id>/restore/", operations.restore, name="operation-restore"),
    path("outbox/", outbox.outbox, name="outbox"),
    path("outbox/retry/", outbox.retry, name="outbox-retry"),
    path("outbox/<uuid:message_id>/", outbox.message_page, name="outbox-message"),
    path("outbox/<uuid:message_id>/retry/", outbox.retry_one, name="outbox-message-retry"),
]
