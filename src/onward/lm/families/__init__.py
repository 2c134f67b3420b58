"""Families of networks that our own forward loop computes exactly.

A family is one entry in ``table``. ``traits`` reads a ``config.json`` by its entry, and ``rotary`` computes
the rotary embedding. All but ``rotary`` need no torch.
"""
