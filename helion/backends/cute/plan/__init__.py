"""From the facts of one matrix product to a plan: tiles, clusters, stages, and every count that follows from them."""
