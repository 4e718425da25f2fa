"""Ratios of predicted times at which one config replaces another as the default, for all backends.

A prediction is 10 to 20 % off, so close predictions do not decide. The order of the heuristics does.
"""

from __future__ import annotations

#: Ratio of predicted times from which any other seed replaces the first promoted one.
FASTER_RATIO = 2.0
#: Speedup from which a config that is predicted to spill replaces one that is not.
SPILLING_RATIO = 4.0
#: Ratio below which predicted times of two halved tiles count as equal.
SAME_TIME_RATIO = 1.25
#: Ratio to the general backend's predicted time below which another backend replaces it. Smaller differences are within
#: the error of the prediction.
BACKEND_RATIO = 0.97
