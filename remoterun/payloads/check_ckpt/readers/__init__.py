"""From the bytes of each format to tensors as byte ranges."""
