"""The cost model of a step's time: fitted, judged, planned with, forecast from; arithmetic only."""
