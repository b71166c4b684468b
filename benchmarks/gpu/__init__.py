"""What to do on a fresh node with GPUs and no network: one command, and one file to send back."""
