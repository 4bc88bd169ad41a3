"""One pass over the bytes: checksums, counts and statistics of every tensor."""
