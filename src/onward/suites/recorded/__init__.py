"""Recorded tasks as a suite: ``tasks`` makes items from stored trajectories, ``replay`` asks a policy and
answers its calls from the record, ``judging`` decides, ``suite`` chooses and freezes the items."""
