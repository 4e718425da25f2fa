"""The compiler's view of a bound kernel: as data, as text, as a table in a terminal, and as a page."""
