"""Would: what one iteration of a plan would cost, in time and in memory."""
