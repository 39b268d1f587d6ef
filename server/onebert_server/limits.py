"""Bounds that every room of the server shares: how much one request may hold, and how much it may be answered with."""

# Characters of one text.
MAX_TEXT = 65536
# Inputs of one request.
MAX_ITEMS = 64
# Bytes of a JSON body, unless the server is set otherwise.
BODY_BYTES = 2**20
# Bytes of bodies that a process holds and that have not come whole, or four times the largest body.
MAX_COMING_BYTES = 2**27
# Questions of one request, a text for a task each: tasks of one fan-out, texts by tasks of a façade's request.
MAX_FANOUT = 1024
# Characters of one reference to a task.
MAX_REF = 128

# Sequences that one request may come to, by tasks and by windows of long texts.
MAX_SEQUENCES = 4096
# Logits that one request may be answered with, 64 MiB of them: 64 texts of 512 tokens with 512 tags each, say.
MAX_LOGITS = 2**24
# Bytes of JSON that one request may be answered with.
MAX_ANSWER_BYTES = 2**24
# Bytes of large answers that a process holds because their clients have not taken them yet.
MAX_UNTAKEN_BYTES = 2**29

# Characters that are tokenized or wait to be: as much as the largest request holds, 64 pairs of the longest texts.
MAX_CHARACTERS = MAX_ITEMS * 2 * MAX_TEXT

# Inputs of one request that are explained.
MAX_EXPLAINED = 16
# Stretches of one input that are left out of it, one at a time, to explain an answer; each costs what the input costs.
MAX_LEFT_OUT = 64
# Long inputs leave out fewer stretches: at most this many computed tokens, but at least eight stretches.
MAX_LEFT_OUT_TOKENS, MIN_LEFT_OUT = 2048, 8
# Tokens and characters of one request's inputs without these stretches, together: as many tokens as the largest plain
# request has, and as many characters as the largest body. Of inputs that are longer together, fewer are left out.
MAX_EXPLAINED_TOKENS, MAX_EXPLAINED_CHARACTERS = 2**15, 2**20

# Seconds that a request may be given.
MAX_REQUEST_TIMEOUT = 600
