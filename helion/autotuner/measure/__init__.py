"""Trying configs: compiling them, running them where they can do no harm, checking what they give, and timing them."""
