"""Networks in PyTorch and numpy: ``nets`` (MLP, ensemble, image encoder), ``dists`` (action
distributions), ``flat`` and ``adam`` (all parameters as one tensor, and its optimiser), ``in_numpy`` and
``images`` (forward passes without torch), ``fast`` (two losses with gradients by hand)."""
