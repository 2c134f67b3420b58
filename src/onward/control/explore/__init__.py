"""Exploration: epsilon schedules, upper confidence bounds, and bonuses (counts, RND, ICM) added to the
reward.

A bonus is a second stream beside the reward. It has its own scale and its own rule for the end of a return.
The reported raw reward never contains it.
"""
