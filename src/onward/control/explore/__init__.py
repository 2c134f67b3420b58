"""Exploration: epsilon schedules, upper confidence bounds, and bonuses (counts, RND, ICM) beside the reward.

A bonus is a second stream with its own scale and its own rule for the end of a return. The reported raw
reward never contains it.
"""
