"""User feedback on an agent's work, from the page to the bus: tokens, limits, votes, intake.

The api serves it over HTTP and the gateway hands out tokens; both only call this package. From the bus the
rewarder (``reward.role.feedback``) and the gateway (``serving.recording.outcome_publisher``) read it.
"""
