"""Sample tasks in R2E-Gym's and SWE-bench's form, built on this machine from released packages."""
