"""Exercise 2: PRESERVE_RESULT_TOOLS = set().

The trail of calls stays, "[Previous: used read_file]" beside the path in the call, so the model
knows that it has read the file, and can read it again, or search the transcript. Measured on
recorded sessions more of what the next call needs is still visible when files are preserved; the
context is smaller when they are not.
"""

PRESERVE_RESULT_TOOLS = set()
