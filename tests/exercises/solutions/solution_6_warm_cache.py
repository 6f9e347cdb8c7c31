"""Exercise 6: CLEAR_AT_LEAST = 5000.

The prompt cache knows a request again only up to the first changed byte. Every clearing changes
something in the middle, and all behind it is written to the cache anew, at 1.25 instead of 0.1 of
the price. So clear rarely, and enough to be worth it.
"""

CLEAR_AT_LEAST = 5000
