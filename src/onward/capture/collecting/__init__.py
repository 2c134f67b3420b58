"""The collector and its parts, and the archiver: from streams into the warehouse.

``collector`` is the role. ``inspection`` decides the fate of a message, ``enrich`` builds its row,
``quarantine`` stores messages that could not be redacted, and ``quarantine_retry`` retries these.
``archiver`` copies status, deployments and outcomes into tables.
"""
