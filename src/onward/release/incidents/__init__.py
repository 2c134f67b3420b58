"""Incidents: what a rolled-back candidate failed at, with a cause and a recommendation by rule."""
