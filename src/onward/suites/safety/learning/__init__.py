"""Data and training of the two shipped classifiers: ``refusal`` (an answer that declines) and ``hostility``.

The texts were written for this project. ``python -m onward.suites.safety.learning`` trains both again and
prints their confusion matrices on the held-out texts, which the training never sees.
"""
