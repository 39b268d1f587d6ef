"""Bounds that every room of the server shares: how much one request may hold, and how much it may be answered with."""

# Characters of one text.
MAX_TEXT = 65536
# Inputs of one request.
MAX_ITEMS = 64
# Bytes of a JSON body, unless the server is set otherwise.
BODY_BYTES = 2**20
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
# Of long inputs fewer, but at least so many: fewer still would say little.
MIN_LEFT_OUT = 8
# Characters of one request's inputs without these stretches, together: as much as the largest body holds. Of inputs
# that are longer, or are read in more than MAX_SEQUENCES windows together, fewer stretches are left out.
MAX_EXPLAINED_CHARACTERS = 2**20

# Seconds that a request may be given.
MAX_REQUEST_TIMEOUT = 600
