"""Checks of a hit: whether a candidate is a secret, and which part of it.

Checks that rules name are in ``checks.py``; secret key names in ``names.py``; literal values in ``values.py``
and ``secret_part.py``; values after a name in ``assigned_values.py``. Personal data uses ``surroundings.py``,
``account_places.py``, and the check digits in ``validators.py`` and ``wallets.py``.
"""
