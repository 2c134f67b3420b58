"""The part of the plugin that runs inside Agent Zero. Standard library alone; every import is relative, since
the package is ``usr.plugins.onward.helpers`` there."""
