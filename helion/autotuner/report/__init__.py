"""What a search did, as a page: read from its log."""
