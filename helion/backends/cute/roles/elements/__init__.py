"""Steps for elements of an epilogue that are computed before their accumulator is there."""
