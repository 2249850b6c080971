"""A small shop with a Celery application of its own, whose jobs really fail until its bugs are fixed.

It is attached as any other application would be: ``shop`` imports no Django and no database.
"""
