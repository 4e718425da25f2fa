"""Attention: two chained matmuls with a softmax between them, as users write its loops: close to half of the lines of attention
(measurement ``attention_lines``)."""
