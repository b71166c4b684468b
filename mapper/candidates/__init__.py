"""What may be chosen for a role: every layout listed, priced, and dominated ones left out."""
