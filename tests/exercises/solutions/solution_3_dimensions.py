"""Exercise 3: a summary without "what was accomplished".

The facts of the files that were read are lost: the model goes on with those that remain, and its
answer has no others. Without "current state" what remains to be done is lost: the model has to
make a new plan. The third, key decisions, keeps a real model from deciding the same question anew,
and otherwise; the practice model decides too little to show that.
"""

SUMMARY_PROMPT = """Summarise the conversation below, so that another agent can go on from your
words alone. Write two parts:
1. Current state: what the user asked for, and what remains to be done.
2. Key decisions made, and why."""
