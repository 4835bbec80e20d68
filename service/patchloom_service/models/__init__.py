"""Model families, one file each, and the table that finds the one for a checkpoint."""
