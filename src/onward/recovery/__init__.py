"""Recovery: finds rows and messages that disks have lost, stores again what a stream still holds, and lists
the rest.

``check.py`` is one pass over the tables, ``inventory.py`` the record of which rows there were, ``service.py``
the loop beside the collector and the requests of ``onward warehouse``.
"""
