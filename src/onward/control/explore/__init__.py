"""Exploration: epsilon schedules, upper confidence bounds, and bonuses (counts, RND, ICM) that add to reward.

The one thing to know: a bonus is a second stream beside the reward. It has its own scale and its own notion
of when a return ends, and the raw reward that is reported never contains it.
"""
