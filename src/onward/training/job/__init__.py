"""The training job itself. ``worker`` is the child process and its entry point; ``local`` starts it from the
command line. ``methods`` maps the algorithms to learners, ``onpolicy`` and ``actor`` train in environments.
``state`` saves progress, ``curves`` writes metrics, ``estimate`` predicts memory and time.
"""
