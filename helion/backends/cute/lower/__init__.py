"""From the device IR to the records that plans are made of."""
