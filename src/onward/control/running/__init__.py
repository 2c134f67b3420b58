"""Training runs: ``trainer`` holds the loop; ``presets`` tuned settings; ``runs`` a run's
configuration and folder; ``checkpoint``, ``log`` and ``training_episodes`` its state, metrics and episodes;
``curves`` draws learning curves. ``seeds_in_parallel`` trains several runs at a time."""
