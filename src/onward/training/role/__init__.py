"""The trainer role of the service. ``trainer`` receives requests and runs the job child; ``jobs`` is the
table of jobs.
"""
