"""Computes rewards from stored trajectories. ``score`` scores one trajectory, ``state`` holds what it is
compared with, ``rows`` converts between warehouse rows and rewards. ``explain``, ``simulate`` and ``files``
serve people who inspect scores."""
