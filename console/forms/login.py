"""The login form."""

from __future__ import annotations

import math
from typing import Any

from django.contrib.auth.forms import AuthenticationForm
from django.core.exceptions import ValidationError
from django.utils import timezone

from console import throttle


class LoginForm(AuthenticationForm):
    """Django's, with the console's fields and words."""

    error_messages = {
        "wait": "Too many wrong passwords for this name. Wait %(seconds)s s and try again.",
        "invalid_login": "This name and password do not belong together. Passwords are case-sensitive.",
        "inactive": "This login is switched off. Ask an admin.",
    }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, field in self.fields.items():
            field.widget.attrs.update({"class": "input"})
            if self.errors:
                field.widget.attrs.update({"aria-invalid": "true", "aria-describedby": "login-error"})
            if name == "username":
                field.label = "Name"

    def clean(self) -> dict[str, Any]:
        """Say that one has to wait; the password is not looked at then, so it is not called wrong."""
        name = self.cleaned_data.get("username")
        wait = (
            throttle.seconds_to_wait(self.request, name, now=timezone.now()) if name and self.request else 0
        )
        if wait > 0:
            raise ValidationError(
                self.error_messages["wait"], code="wait", params={"seconds": math.ceil(wait)}
            )
        return super().clean()
