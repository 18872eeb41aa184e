"""Serves policies to robots: openpi, RoboArena, and actions over HTTP."""
