"""The pages of alerts, their rules and silences."""

from __future__ import annotations

from django.urls import URLPattern, path

from console.views import alert_rules, alerts, silences

urlpatterns: list[URLPattern] = [
    path("alerts/", alerts.alerts, name="alerts"),
    path("alerts/history/", alerts.history, name="alert-history"),
    path("alerts/<int:alert_id>/", alerts.alert, name="alert"),
    path("alerts/rules/", alert_rules.rule_list, name="alert-rules"),
    path("alerts/rules/new/", alert_rules.kinds, name="alert-rule-kinds"),
    path("alerts/rules/new/<slug:kind>/", alert_rules.new, name="alert-rule-new"),
    path("alerts/rules/<int:rule_id>/", alert_rules.rule_page, name="alert-rule"),
    path("alerts/rules/<int:rule_id>/change/", alert_rules.change, name="alert-rule-change"),
    path("alerts/rules/<int:rule_id>/enable/", alert_rules.enable, name="alert-rule-enable"),
    path("alerts/rules/<int:rule_id>/disable/", alert_rules.disable, name="alert-rule-disable"),
    path("alerts/rules/<int:rule_id>/delete/", alert_rules.delete, name="alert-rule-delete"),
    path("alerts/rules/<int:rule_id>/test/", alert_rules.test, name="alert-rule-test"),
    path("alerts/silence/", silences.silence, name="alert-silence"),
    path("alerts/silences/", silences.silences, name="alert-silences"),
    path("alerts/silences/<int:silence_id>/end/", silences.end, name="alert-silence-end"),
]
