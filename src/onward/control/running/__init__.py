"""Training runs: ``trainer`` holds the loop; ``config``, ``fields`` and ``presets`` the settings; ``runs`` a
run's configuration and folder; ``checkpoint``, ``log`` and ``training_episodes`` its state, metrics and
episodes. ``seeds_in_parallel`` trains several runs at a time."""
