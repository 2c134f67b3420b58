"""Agent Zero: a plugin that records its work, and the importer of its chat files.

``plugin`` is copied into Agent Zero as a whole (``usr/plugins/onward``) and uses the standard library alone.
``worker`` is its child process; it runs with Onward's own interpreter, so that no package of Onward enters
the environment of Agent Zero.
"""
