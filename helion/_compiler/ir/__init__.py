"""The device IR: grammar, verifier, printer and builder."""
