"""Suites from Inspect (``inspect-ai``, extra ``eval``): any task of an installed package, or one of Onward's.

``suite`` is the side of the service, ``child`` the process that imports Inspect, ``outcome`` what a sample of
Inspect means as an item.
"""
