"""The job runtime: what an application installs.

Importing this package imports nothing else, so that ``from jobs.agent import attach`` works in a
process without Django.
"""
