"""Printed code of attention on tcgen05."""
