"""Exercise 1: KEEP_RECENT = 0.

Layer 1 now clears every long result as soon as the model has read it. What it has not read is in
the last message, and that is never touched, whatever the knob says. So the model can work: it
sees each result exactly once. It must say in its own words what it will need, or run the tool
again. With read_file preserved (as shipped) only the output of bash goes.
"""

KEEP_RECENT = 0
