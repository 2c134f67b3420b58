"""Checks of a hit: whether a candidate is a secret, and which part of it.

Checks that rules name are in ``checks.py``; secret key names in ``names.py``; literal values in
``values.py``; values under or after a name in ``assigned_values.py``. Personal data uses ``surroundings.py``,
and the check digits in ``validators.py`` and ``wallets.py``.
"""
