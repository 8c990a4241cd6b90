"""How fast the parts are, always beside something else measured in the same run."""
