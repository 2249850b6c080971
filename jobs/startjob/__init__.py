"""Writes a new job with its test into an application: what ``manage.py startjob`` does."""

from jobs.startjob.draft import Draft
from jobs.startjob.placing import Change, choose_app, plan, write

__all__ = ["Change", "Draft", "choose_app", "plan", "write"]
