"""A data folder: its owner, its proof of age, its small files, and logs set aside."""
