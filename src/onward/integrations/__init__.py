"""Connections to agents of other projects: plugins that are installed into them, and importers."""
