"""Runs inside any Celery worker. Imports celery and kombu only; imports itself relatively."""
