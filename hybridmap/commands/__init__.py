"""The commands of ``hybridmap``, one file each. Each imports what it needs when it runs, so that help is instant."""
