"""Explanations of a release: its decisions replayed, in words and as pictures; detection delays.

Pure, apart from the reading of outcomes.
"""
