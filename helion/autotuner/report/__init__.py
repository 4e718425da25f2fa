"""Report of a search as a page, made from its log."""
