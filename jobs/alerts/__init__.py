"""Alert rules: measured, judged by ``core.alerts``, told by e-mail and webhook."""
