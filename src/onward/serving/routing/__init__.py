"""Routing of sessions to the arms of a release, and of arms to adapters.

``router`` assigns sessions (pure); ``assignments`` stores the assignments; ``session_ids`` derives the
session of a call. ``desired`` follows the desired state. ``opted_out`` counts the trajectories of users who
opted out.
"""
