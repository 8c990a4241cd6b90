"""Which rows can be trusted, and what stored patches are worth today: the judge's work without a model."""
