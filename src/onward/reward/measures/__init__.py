"""Measures that scoring is built on. ``facts`` reads turns, ``correction_requests`` finds requests to redo
work, ``judgement`` decides the outcome, ``baselines`` holds the usual effort per task type, ``normalise``
compares a score with a window."""
