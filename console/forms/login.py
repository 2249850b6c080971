"""The login form."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.forms import AuthenticationForm


class LoginForm(AuthenticationForm):
    """Django's, with the console's fields and words."""

    error_messages = {
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
