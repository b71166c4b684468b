"""The embedded default engine: a decoder of our own in plain torch, on CPUs over gloo and on GPUs over NCCL."""
