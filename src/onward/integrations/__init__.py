"""Plugins for agents of other projects."""
