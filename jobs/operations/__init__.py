"""Replays, purges and restores: what pages and commands call, and the runner that carries them out."""

from jobs.audit import Actor
from jobs.errors import OperationRefused
from jobs.operations.control import cancel, continue_stage, pause, resume, set_rate
from jobs.operations.outcomes import report
from jobs.operations.preview import Check, Level, Preview, preview
from jobs.operations.progress import DiedGroup, Progress, SentBucket, StageRow, progress
from jobs.operations.selection import Selection
from jobs.operations.starting import purged_letters, start_purge, start_replay, start_restore

__all__ = [
    "Actor",
    "Check",
    "DiedGroup",
    "Level",
    "OperationRefused",
    "Preview",
    "Progress",
    "Selection",
    "SentBucket",
    "StageRow",
    "cancel",
    "continue_stage",
    "pause",
    "preview",
    "progress",
    "purged_letters",
    "report",
    "resume",
    "set_rate",
    "start_purge",
    "start_replay",
    "start_restore",
]
