"""Sample tasks in R2E-Gym form, built on this machine from released packages."""
