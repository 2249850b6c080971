"""Fixtures for the tests of people who write jobs."""
