"""Renderers of results: tables, figures, timelines."""
