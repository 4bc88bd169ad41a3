"""What the names of tensors tell."""

from __future__ import annotations

import re

from ..patterns import pattern

# Buffers that hold minus infinity, or the lowest number of their format, on purpose.
MASK = pattern(
    r"(?:^|[._])\w*(mask|causal|alibi|attn_bias|attention_bias|position_bias|bias_table|rel_pos)\w*$", re.IGNORECASE
)
# Buffers that hold the least or the greatest of what a module has seen.
EXTREME = pattern(
    r"(?:^|[._])(?:(?:running_)?(?:min|max)(?:_vals?)?|(?:low|upp)er_bound|best(?:_\w+)?)$", re.IGNORECASE
)
# Floating-point tensors of a state dict that no optimizer works on.
BUFFER = pattern(
    r"(?:^|[._])(?:running_mean|running_var|num_batches_tracked|inv_freq|freqs?_cis|(?:sin|cos)(?:_cached)?"
    r"|position_ids|cluster_size|embed_avg|masked_bias|\w*mask)$"
)
BIAS = pattern(r"(?:^|[._])(?:\w*bias\w*|beta|b)$", re.IGNORECASE)
NORM = pattern(r"(?:norm|(?:^|[._])(?:ln|bn|gn)_?[a-z0-9]*)[._](?:\w+[._])?(?:weight|gamma|scale|g)$", re.IGNORECASE)
# The ends of a language model, which are often tied.
INPUT = pattern(r"(?:^|[._])(?:\w*embed\w*|wte|emb|shared)[._]weight$", re.IGNORECASE)
OUTPUT = pattern(r"(?:^|[._])(?:\w*head|output\w*|embed_out|decoder|generator|proj_out)[._]weight$", re.IGNORECASE)
# The factors of a low-rank adapter: the second starts at zero.
LORA_FIRST = pattern(r"lora_(?:embedding_)?(?:a|down)(?:[._]|$)", re.IGNORECASE)
LORA_SECOND = pattern(r"lora_(?:embedding_)?(?:b|up)(?:[._]|$)", re.IGNORECASE)
