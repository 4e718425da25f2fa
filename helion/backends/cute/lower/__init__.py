"""The lowering from the device IR to the records of a plan."""
