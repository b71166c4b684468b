"""What brings a run up on a cluster: a Slurm batch script, a Ray job, a KubeRay manifest, a SkyPilot task."""
