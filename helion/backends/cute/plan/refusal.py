"""The one error that planning raises."""

from __future__ import annotations


class Refusal(ValueError):
    """The product, the tile or the stages asked for are not implemented or do not fit; the message says which and why."""
