"""Computes rewards from stored trajectories. ``score`` scores one trajectory, ``total`` combines components,
``dense`` shares the total among turns, ``rows`` converts between warehouse rows and rewards. ``explain``,
``simulate`` and ``files`` serve people who inspect scores."""
