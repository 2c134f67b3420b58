"""Rules as data, by layer, and ``catalogue.py``, which collects them and computes the policy version.

Layer 1: ``vendors.py``, ``services.py``. Layer 2: ``structure.py``, ``assignments.py``. Layer 3:
``personal.py`` and the ``personal_*.py`` files; ``personal_optional.py`` is off unless chosen.
"""
