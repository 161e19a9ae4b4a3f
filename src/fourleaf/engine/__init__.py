"""Requests in, committed tokens out."""

from fourleaf.engine.engine import Engine, bundled_path

__all__ = ["Engine", "bundled_path"]
