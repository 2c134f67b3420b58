"""Health of the service: the watch over its parts, with alerts, and the answers of ``/ready``."""
